"""``check`` must find what is wrong, on every kind of wrong; here with modules on the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from fusegen import report
from fusegen.compiler import compile_file, compile_graph
from fusegen.errors import MismatchError, ToolchainError
from fusegen.ir import Graph
from fusegen.trace import load_model_file
from fusegen.verdict import check
from fusegen.verdict.check import EPS, CheckReport, ProofResult, check_numerics, compare, copied, oracle
from fusegen.verdict.subject import Subject, model_subject, part_subject
from fusegen.verdict.truncate import before_flattening
from tests.models import traced, write

PROOF = ProofResult(rounds=3, worst=1e-15)
CPU = torch.device("cpu")
INF, NAN = float("inf"), float("nan")


class Reference(nn.Module):
    """A mean of a linear map, then logsumexp: what a wrong kernel can hide behind."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(self.linear(x.transpose(1, 2)).mean(1), dim=1)


def subject(generated: Callable[[], nn.Module]) -> Subject:
    return Subject(name="m", reference=Reference, generated=generated, inputs=lambda: (torch.rand(256, 6, 50),))


def numerics(generated: Callable[[], nn.Module]) -> CheckReport:
    return check_numerics(subject(generated), PROOF, CPU, convolves=False)


def variant(function: Callable[[nn.Module, torch.Tensor], Any]) -> type[Reference]:
    class Variant(Reference):
        def forward(self, x: torch.Tensor) -> Any:
            return function(self, x)

    return Variant


def truth(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return Reference.forward(cast(Reference, module), x)


def failing_sets(found: CheckReport) -> set[str]:
    return {group.name for group in found.sets if not group.passed}


def test_the_reference_itself_passes() -> None:
    found = numerics(Reference)
    assert found.passed
    assert [group.name for group in found.sets] == ["the file's inputs", "weights x16", "randn*3 + offsets"]
    assert found.same_state
    assert found.repeatable


def test_an_algebraically_equal_module_passes() -> None:
    def collapsed(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        linear = cast(nn.Linear, m.linear)
        means = x.double().mean(2) @ linear.weight.double().t() + linear.bias.double()
        return torch.logsumexp(means, dim=1).float()

    assert numerics(variant(collapsed)).passed


def test_a_module_that_ignores_its_input_fails() -> None:
    found = numerics(variant(lambda m, x: truth(m, torch.full_like(x, 0.5))))
    assert "randn*3 + offsets" in failing_sets(found)
    assert not found.passed


def test_a_missing_bias_fails() -> None:
    def unbiased(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        linear = cast(nn.Linear, m.linear)
        return torch.logsumexp((linear(x.transpose(1, 2)) - linear.bias).mean(1), dim=1)

    assert len(failing_sets(numerics(variant(unbiased)))) == 3


def test_an_error_on_negative_inputs_alone_fails() -> None:
    found = numerics(variant(lambda m, x: truth(m, x.relu())))
    assert failing_sets(found) == {"randn*3 + offsets"}


def test_low_precision_fails() -> None:
    def rounded(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return truth(m, x.bfloat16().float())

    assert not numerics(variant(rounded)).passed


def test_nan_fails_even_where_eager_is_bad() -> None:
    assert len(failing_sets(numerics(variant(lambda m, x: truth(m, x) * NAN)))) == 3


def test_results_that_change_from_call_to_call_fail() -> None:
    count = itertools.count()
    found = numerics(variant(lambda m, x: truth(m, x) + 1e-7 * next(count)))
    assert found.repeatable is False
    assert not found.passed


def test_another_initialisation_fails() -> None:
    class Reordered(Reference):
        def __init__(self) -> None:
            torch.rand(1)
            super().__init__()

    found = numerics(Reordered)
    assert found.same_state is False
    assert not found.passed


def test_an_exception_in_the_generated_module_is_a_mismatch() -> None:
    def broken(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("launch failed")

    with pytest.raises(MismatchError, match="launch failed"):
        numerics(variant(broken))


@pytest.mark.parametrize("result", [lambda y: y[:-1], lambda y: y.double(), lambda y: (y, y)])
def test_another_shape_dtype_or_count_is_a_mismatch(result: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(MismatchError):
        numerics(variant(lambda m, x: result(truth(m, x))))


def test_buffers_that_the_call_updates_are_compared() -> None:
    class Norm(nn.Module):
        momentum = 0.1

        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(6, momentum=self.momentum)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return cast(torch.Tensor, self.norm(x))

    class Wrong(Norm):
        momentum = 0.2

    given = Subject(name="m", reference=Norm, generated=Wrong, inputs=lambda: (torch.rand(5, 6, 50),))
    found = check_numerics(given, PROOF, CPU, convolves=False)
    outputs = {o.output: o.passed for o in found.sets[0].outputs}
    assert outputs["output 0"]
    assert not outputs["buffer norm.running_mean"]


R = torch.tensor([1.0, -2.0, 4.0], dtype=torch.float64)


def compared(y: list[float], e: list[float], r: torch.Tensor = R) -> bool:
    return compare("o", torch.tensor(y), torch.tensor(e), r).passed


def test_tensors_that_a_model_keeps_in_attributes_are_compared(tmp_path: Path) -> None:
    init = "self.h = torch.rand(3, 5)\nself.c = torch.nn.utils.weight_norm(nn.Linear(5, 5))"
    body = "self.h = torch.tanh(self.h + self.c(x))\nreturn self.h * 2"
    path, file = write(tmp_path, body, init, "torch.rand(3, 5)"), tmp_path / "generated.py"
    file.write_text(compile_file(path).source)
    found = model_subject(path, file)
    reference, generated = (found.build(factory, "cpu") for factory in (found.reference, found.generated))
    assert [name for name, _ in reference.named_buffers()] == [name for name, _ in generated.named_buffers()] == ["h"]
    assert torch.equal(cast(torch.Tensor, reference.h), cast(torch.Tensor, generated.h))
    assert list(reference.state_dict()) == list(generated.state_dict())


def test_tolerance_is_twice_eagers_largest_error() -> None:
    e = [1.0, -2.0, 4.01]
    assert compared([1.0, -2.0, 4.019], e)
    assert not compared([1.0, -2.0, 4.021], e)


def test_rms_catches_an_error_spread_over_all_elements() -> None:
    r = torch.zeros(1000, dtype=torch.float64)
    e = torch.zeros(1000)
    e[0] = 0.01
    everywhere = compare("o", torch.full((1000,), 0.01), e, r)
    assert everywhere.max_generated <= everywhere.max_allowed
    assert not everywhere.passed


def test_floor_is_eight_roundings_of_the_largest_value() -> None:
    r = torch.full((1000,), 4.0, dtype=torch.float64)
    exact = r.float()
    near, far = exact.clone(), exact.clone()
    near[0] += 8 * 4 * EPS
    far[0] += 10 * 4 * EPS
    assert compare("o", near, exact, r).passed
    assert not compare("o", far, exact, r).passed


@pytest.mark.parametrize(
    ("y", "e", "r", "good"),
    [
        ([NAN, 1.0], [NAN, 1.0], [NAN, 1.0], True),
        ([0.0, 1.0], [NAN, 1.0], [NAN, 1.0], False),
        ([INF, 1.0], [NAN, 1.0], [NAN, 1.0], False),
        ([NAN, 1.0], [0.0, 1.0], [0.0, 1.0], False),
        ([NAN, 1.0], [NAN, 1.0], [0.0, 1.0], False),
        ([INF, 1.0], [INF, 1.0], [INF, 1.0], True),
        ([-INF, 1.0], [INF, 1.0], [INF, 1.0], False),
        ([3.0e38, 1.0], [INF, 1.0], [INF, 1.0], False),
        ([INF, 1.0], [INF, 1.0], [1e39, 1.0], True),
        ([5.0, 1.0], [INF, 1.0], [2.0, 1.0], False),
        ([INF, 1.0], [INF, 1.0], [2.0, 1.0], False),
    ],
)
def test_nan_and_infinities_must_be_where_the_oracle_has_them(
    y: list[float], e: list[float], r: list[float], good: bool
) -> None:
    assert compared(y, e, torch.tensor(r, dtype=torch.float64)) is good


def test_comparison_by_chunks_equals_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    r = torch.randn(1000, dtype=torch.float64)
    y, e = r.float() + 1e-6, r.float() * (1 + 1e-6)
    whole = compare("o", y, e, r)
    monkeypatch.setattr(check, "CHUNK", 77)
    parts = compare("o", y, e, r)
    assert parts.max_generated == whole.max_generated
    assert parts.rms_eager == pytest.approx(whole.rms_eager, rel=1e-12)


class Hungry(nn.Module):
    """Runs out of memory on more than two rows."""

    def __init__(self, separable: bool) -> None:
        super().__init__()
        self.separable = separable

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 2:
            raise torch.OutOfMemoryError("out of memory")
        return x * 2 if self.separable else x - x.mean(0)


def test_the_oracle_slices_the_batch_when_memory_runs_out() -> None:
    x = torch.rand(7, 3, dtype=torch.float64)
    (r,) = oracle(Hungry(separable=True), (x,))
    assert torch.equal(r, x * 2)


def test_the_oracle_does_not_slice_what_mixes_rows() -> None:
    with pytest.raises(ToolchainError, match="memory"):
        oracle(Hungry(separable=False), (torch.rand(7, 3, dtype=torch.float64),))


class Starting(nn.Linear):
    """Makes a tensor of torch's own element type, as states to start from are."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.zeros(x.shape)) + x


def test_what_forward_makes_is_as_precise_as_the_oracle() -> None:
    x = torch.rand(2, 3, dtype=torch.float64)
    model = Starting(3, 3).double()
    (r,) = oracle(model, (x,))
    assert torch.equal(r, model.bias + x)
    assert torch.get_default_dtype() is torch.float32


class Asking(nn.Linear):
    """Asks for float32, as models that also run in 16 bits do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(torch.float32)
        rows = torch.softmax(x, dim=-1, dtype=torch.float32) + torch.arange(3, dtype=torch.float32)
        return super().forward(rows.float() @ x.type(torch.float32).t()[:, :1].expand(3, 3))


def test_what_forward_asks_for_in_float32_is_float64_in_the_oracle() -> None:
    x = torch.rand(3, 3, dtype=torch.float64)
    model = Asking(3, 3).double()
    (r,) = oracle(model, (x,))
    rows = x.softmax(-1) + torch.arange(3, dtype=torch.float64)
    assert r.dtype is torch.float64
    torch.testing.assert_close(r, nn.functional.linear((rows @ x[:1].t()).expand(3, 3), model.weight, model.bias))


def test_convolutions_are_also_checked_with_tf32_off() -> None:
    def reference() -> nn.Module:
        return nn.Conv1d(2, 3, 3)

    given = Subject(name="m", reference=reference, generated=reference, inputs=lambda: (torch.rand(2, 2, 9),))
    before = torch.backends.cudnn.allow_tf32
    found = check_numerics(given, PROOF, CPU, convolves=True)
    assert "TF32 turned off" in [group.name for group in found.sets]
    assert found.eager_class is not None
    assert found.eager_class.tf32 < 1e-5
    assert not found.eager_class.uses_tf32
    assert torch.backends.cudnn.allow_tf32 is before


def test_without_a_gpu_only_the_proof_is_claimed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    compiled = cast(Any, SimpleNamespace(proof=SimpleNamespace(sizes=({},) * 4, worst=0.0)))
    found = check.check(compiled, Path("m.py"), Path("nowhere.py"))
    assert found.device is None
    assert found.sets == ()
    assert found.same_state is None
    assert found.passed
    report.print_check(found)
    printed = " ".join(capsys.readouterr().out.split())
    assert "only the rewrite proof was run" in printed
    assert "passed" not in printed


def test_json_has_the_verdict_of_every_output() -> None:
    dumped = numerics(variant(lambda m, x: truth(m, x) + 1)).model_dump(mode="json")
    assert dumped["passed"] is False
    assert all(output["passed"] is False for group in dumped["sets"] for output in group["outputs"])
    assert dumped["sets"][0]["outputs"][0]["ratio"] > 100


def cut(body: str, tmp_path: Path) -> Graph | None:
    layers = "self.conv = nn.Conv2d(3, 4, 3)\nself.linear = nn.Linear(5, 5)"
    return before_flattening(traced(write(tmp_path, body, layers)).graph)


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        ("return torch.softmax(self.conv(x) * 2, 1).sigmoid()", [["conv", "pointwise"]]),
        ("y = self.conv(x).view(x.shape[0], -1)\nreturn y.tanh(), y.sum(1)", [["conv", "reshape"]]),
        ("y = self.conv(x)\nreturn torch.clamp(y + 1, 0, 1) * y.sigmoid()", [["conv", "pointwise"], ["conv"]]),
        ("return self.conv(x.sigmoid()).relu()", None),
        ("return self.conv(x).logsumexp(1)", None),
        ("return (x * 2).sigmoid()", None),
        ("return torch.where(self.linear(x) > 0, x, 1.0)", [["matmul"]]),
    ],
)
def test_models_are_cut_before_what_flattens(body: str, kinds: list[list[str]] | None, tmp_path: Path) -> None:
    part = cut(body, tmp_path)
    assert (part is None) == (kinds is None)
    if part is None or kinds is None:
        return
    assert part.tuple_output == (len(kinds) > 1)
    for name, expected in zip(part.outputs, kinds, strict=True):
        made = part.replace(outputs=(name,), tuple_output=False).prune().nodes
        assert [n.op.kind for n in made if n.op.kind not in ("input", "param", "const")] == expected


def test_the_part_has_the_parameters_and_inputs_of_the_whole(tmp_path: Path) -> None:
    path = write(tmp_path, "return self.linear(x).flatten(1).sigmoid()", "self.linear = nn.Linear(5, 5)")
    part = before_flattening(compile_file(path).program.before)
    assert part is not None
    generated = tmp_path / "generated.py"
    generated.write_text(compile_graph(part, "part").source)
    loaded = load_model_file(path)
    whole = Subject(
        name="m", reference=loaded.model_class, generated=loaded.model_class, inputs=lambda: tuple(loaded.get_inputs())
    )
    found = part_subject(whole, part, generated)
    (x,) = found.inputs_on("cpu")
    results = [found.build(factory, "cpu")(x) for factory in (found.reference, found.generated)]
    expected = whole.build(whole.reference, "cpu").linear(x).flatten(1)
    for result in results:
        torch.testing.assert_close(result, expected)


def test_a_part_that_fails_fails_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = numerics(Reference), numerics(variant(lambda m, x: truth(m, x) + 1))
    assert good.replace(alone=good.sets).passed
    failed = good.replace(alone=bad.sets)
    assert not failed.passed
    report.print_check(failed)
    assert "contraction alone" in capsys.readouterr().out


def test_a_copy_has_functions_of_its_own() -> None:
    """Of a module that keeps a function over one of its parts, as ``self.f = lambda x: m(x)`` does."""

    class Kept(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            part = self.part = torch.nn.Linear(3, 2)
            self.apply_part = lambda x: part(x)

    model = Kept()
    fresh = copied(model).double()
    x = torch.rand(4, 3, dtype=torch.float64)
    assert torch.equal(fresh.apply_part(x), fresh.part(x))  # type: ignore[operator]
    assert model.part.weight.dtype is torch.float32
