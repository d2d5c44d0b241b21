"""torch.distributions in a model: their arguments are not looked at while it is traced."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributions import Distribution

from fusegen.compiler import compile_file
from fusegen.ir import EagerOp
from tests.emitted import reference_from, simulated
from tests.models import write

INIT = "self.l = nn.Linear(16, 16)\nself.m = nn.Linear(16, 16)\nself.s = nn.Parameter(torch.rand(16))"
PRIOR = "D.Normal(torch.zeros_like(x), torch.ones_like(x))"
BODIES = {
    "normal": "d = D.Normal(self.l(x), F.softplus(self.m(x)) + 1e-3)\n"
    "return d.log_prob(x).sum(-1) + d.entropy().mean(-1)",
    "divergence": f"p = D.Normal(self.l(x), self.m(x).exp())\nreturn D.kl_divergence(p, {PRIOR}).sum(-1)",
    "categorical": "d = D.Categorical(logits=self.l(x))\nreturn d.entropy() + d.log_prob(x.argmax(1))",
    "laplace": "return D.Independent(D.Laplace(self.l(x), 2.0), 1).log_prob(x)",
    "bernoulli": "return D.Bernoulli(logits=self.l(x)).log_prob(x.round()).mean(1)",
    "mixture": "c, n = D.Categorical(logits=self.l(x)), D.Normal(self.m(x), self.s.exp())\n"
    "return D.MixtureSameFamily(c, n).log_prob(x[:, 0])",
}


@pytest.mark.parametrize("name", BODIES)
def test_agrees_with_eager(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"D = torch.distributions\n{BODIES[name]}", INIT, "torch.rand(8, 16)")
    validated = Distribution._validate_args
    compiled = compile_file(path)
    assert Distribution._validate_args is validated
    assert not [node for node in compiled.program.before.nodes if isinstance(node.op, EagerOp)]
    torch.manual_seed(0)
    reference = reference_from(path.read_text()).Model()
    torch.manual_seed(0)
    generated = simulated(compiled).ModelNew()
    x = torch.rand(5, 16)
    with torch.no_grad():
        torch.testing.assert_close(generated(x), reference(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("variance", ["x[:, 2]", "x[:, 2, :1]", "x[:, 2].mean(1)"])
@pytest.mark.parametrize("options", ["", ", full=True, reduction='sum'", ", eps=0.5, reduction='none'"])
def test_losses_of_variances_do_not_look_at_them(variance: str, options: str, tmp_path: Path) -> None:
    body = f"return F.gaussian_nll_loss(x[:, 0], x[:, 1], {variance}.exp(){options})"
    path = write(tmp_path, body, "", "torch.rand(6, 3, 8)")
    x = torch.randn(5, 3, 8)
    found = simulated(compile_file(path)).ModelNew()(x)
    torch.testing.assert_close(found, reference_from(path.read_text()).Model()(x), rtol=1e-5, atol=1e-5)
