"""ModelNew as a module: state, gradients, copies, constructor arguments, the reference path."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from tests.gpu.cases import COLLAPSED, FEW, GROUPED, TAIL, WINDOWED, agrees, case
from tests.variants import SPECS

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", SPECS)
def test_the_same_seed_gives_the_same_state(name: str) -> None:
    torch.manual_seed(7)
    reference = case(name).reference()
    after_reference = torch.rand(4)
    torch.manual_seed(7)
    generated = case(name).generated()
    assert torch.equal(torch.rand(4), after_reference)
    one, two = reference.state_dict(), generated.state_dict()
    assert list(one) == list(two)
    assert all(torch.equal(one[key], two[key]) for key in one)
    generated.load_state_dict(one, strict=True)
    reference.load_state_dict(two, strict=True)


@pytest.mark.parametrize("name", FEW)
def test_weight_edits_between_calls_take_effect(name: str) -> None:
    reference, generated = case(name).pair()
    x = case(name).x()
    agrees(reference, generated, x)
    with torch.no_grad():
        for module in (reference, generated):
            for parameter in module.parameters():
                parameter.mul_(-1.5).add_(0.01)
    agrees(reference, generated, x)
    for module in (reference, generated):
        for parameter in module.parameters():
            parameter.data.mul_(0.5)  # does not move the version counter
    agrees(reference, generated, x)
    other, _ = case(name).pair(seed=99)
    generated.load_state_dict(other.state_dict())
    agrees(other, generated, x)
    for (path, parameter), (_, theirs) in zip(generated.named_parameters(), reference.named_parameters(), strict=True):
        owner, _, leaf = path.rpartition(".")
        setattr(generated.get_submodule(owner), leaf, nn.Parameter(theirs.detach().clone()))
        del parameter
    agrees(reference, generated, x)


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("of_input", [False, True])
def test_gradients_equal_the_references(name: str, of_input: bool) -> None:
    reference, generated = case(name).pair()
    x = case(name).x()
    found = []
    for module in (reference, generated):
        leaf = x.clone().requires_grad_(of_input)
        y = module(leaf)
        weights = torch.linspace(-1, 1, y.numel(), device="cuda").view_as(y)
        (y * weights).sum().backward()
        gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
        found.append({**gradients, "x": leaf.grad})
    expected, actual = found
    assert (actual["x"] is not None) is of_input
    for key, gradient in expected.items():
        ours = actual[key]
        if gradient is None or ours is None:
            assert gradient is ours, key
            continue
        assert float((ours - gradient).abs().max()) <= 1e-5 * float(gradient.abs().max()), key


def test_training_moves_both_the_same_way() -> None:
    reference, generated = case(WINDOWED).pair()
    x = case(WINDOWED).x()
    for module in (reference, generated):
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(3):
            optimiser.zero_grad()
            module(x).square().sum().backward()
            optimiser.step()
    for one, two in zip(reference.parameters(), generated.parameters(), strict=True):
        assert torch.allclose(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [COLLAPSED, TAIL])
def test_copies_and_pickles_compute_the_same(name: str) -> None:
    _, generated = case(name).pair()
    x = case(name).x()
    with torch.no_grad():
        expected = generated(x)
        assert torch.equal(copy.deepcopy(generated)(x), expected)
        assert torch.equal(pickle.loads(pickle.dumps(generated))(x), expected)


def _warned(run: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = run()
    return result, [str(w.message) for w in seen if "reference" in str(w.message)]


OTHER_ARGUMENTS: dict[str, list[Any]] = {
    COLLAPSED: [8, 24, 5, (24, 1, 1)],
    WINDOWED: [8, 24, 4, 3, 2, 1, -2.0],
    TAIL: [8, 24, 3, 1, 0, 0, (24, 1, 1), 0.25],
    GROUPED: [8, 24, 2, 2, 1, 1, 2, 3],
}


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("name", list(OTHER_ARGUMENTS))
def test_other_constructor_arguments_take_the_reference_path(name: str) -> None:
    arguments = OTHER_ARGUMENTS[name]
    torch.manual_seed(0)
    reference = case(name).loaded.model_class(*arguments).cuda()
    generated = case(name).model_new(*arguments).cuda()
    generated.load_state_dict(reference.state_dict(), strict=True)
    x = torch.randn(2, 8, 13, 11, device="cuda")

    def twice() -> torch.Tensor:
        generated(x)
        result: torch.Tensor = generated(x)
        return result

    y, messages = _warned(twice)
    assert torch.allclose(y, reference(x), rtol=1e-4, atol=1e-5)
    assert len(messages) == 1, messages


def test_strict_makes_the_reference_path_an_error() -> None:
    generated = case(COLLAPSED).model_new(*OTHER_ARGUMENTS[COLLAPSED]).cuda()
    with pytest.raises(RuntimeError, match="reference"):
        generated(torch.randn(2, 8, 13, 11, device="cuda"))


def test_a_changed_attribute_leaves_the_fast_path() -> None:
    _, generated = case(WINDOWED).pair()
    generated.multiplier = 3.0  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="reference"):
        generated(case(WINDOWED).x())


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("what", ["float64", "cpu", "autocast"])
def test_what_the_kernels_do_not_cover_is_still_right(what: str) -> None:
    reference, generated = case(COLLAPSED).pair()
    x = case(COLLAPSED).x()
    if what == "float64":
        reference, generated, x = reference.double(), generated.double(), x.double()
    if what == "cpu":
        reference, generated, x = reference.cpu(), generated.cpu(), x.cpu()
    with torch.autocast("cuda", torch.bfloat16, enabled=what == "autocast"), torch.no_grad():
        y, messages = _warned(lambda: generated(x))
        expected = reference(x)
    assert y.dtype == expected.dtype
    assert y.device == expected.device
    assert torch.allclose(y, expected, rtol=1e-4, atol=1e-5)
    assert len(messages) <= 1


@pytest.mark.parametrize("what", ["float64", "cpu", "autocast"])
def test_what_the_kernels_do_not_cover_is_an_error_when_strict(what: str) -> None:
    _, generated = case(COLLAPSED).pair()
    x = case(COLLAPSED).x()
    if what == "float64":
        generated, x = generated.double(), x.double()
    if what == "cpu":
        generated, x = generated.cpu(), x.cpu()
    with (
        torch.autocast("cuda", torch.bfloat16, enabled=what == "autocast"),
        pytest.raises(RuntimeError, match="reference"),
    ):
        generated(x)


def test_executed_in_the_references_own_globals() -> None:
    """As harnesses do it: nothing that the reference uses may change."""
    scope: dict[str, Any] = {"__name__": "harness"}
    loaded = case(COLLAPSED).loaded
    exec(loaded.source, scope)
    before = {name: value for name, value in scope.items() if not name.startswith("__")}
    path = loaded.path.parent.parent / "generated" / loaded.path.name
    exec(compile(path.read_text(), "generated", "exec"), scope)
    assert all(scope[name] is value for name, value in before.items())
    new = [name for name in scope if name not in before and not name.startswith("__")]
    assert all(name == "ModelNew" or name.startswith("_fusegen_") for name in new)
    torch.manual_seed(0)
    reference = scope["Model"](*scope["get_init_inputs"]()).cuda()
    torch.manual_seed(0)
    generated = scope["ModelNew"](*scope["get_init_inputs"]()).cuda()
    agrees(reference, generated, case(COLLAPSED).x())
