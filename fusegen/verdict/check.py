"""Numerics: the generated module against the reference in float64, and against eager's own error.

With r the reference in float64, e eager and y the generated module under the same flags, every output
must satisfy ``|y - r| <= max(2 max|e - r|, 8 eps max|r|)`` elementwise and
``RMSE(y) <= 2 RMSE(e) + 2 eps RMS(r)``, where eps is 2**-24; NaN and infinities must be where r has them.
Where torch permits TF32 and cuDNN still chose fp32, e's error is that of TF32 arithmetic (``tf32.py``).
Where an op of the model flattens differences (softmax, sigmoid), the part before it is held to the same.
"""

from __future__ import annotations

import copy
import gc
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CellType, FunctionType
from typing import Any

import torch
from pydantic import computed_field
from torch import nn

from fusegen.compiler import Compiled, compile_graph
from fusegen.emit import write_atomic
from fusegen.errors import MismatchError, ToolchainError
from fusegen.interpret import real_parts
from fusegen.ir import ConvOp, Frozen, Graph, RegionOp
from fusegen.verdict.doubles import double, doubled, made_in_double
from fusegen.verdict.subject import Subject, call, call_generated, open_subject, part_subject, strict
from fusegen.verdict.tf32 import tf32_convolutions, tf32_results
from fusegen.verdict.truncate import before_flattening

EPS = 2.0**-24
CHUNK = 1 << 26
"""Elements compared at a time."""


class OutputError(Frozen):
    """Errors of one output against float64: the generated module's, eager's, and what is allowed."""

    output: str
    shape: tuple[int, ...]
    max_generated: float
    max_eager: float
    max_allowed: float
    rms_generated: float
    rms_eager: float
    rms_allowed: float
    max_tf32: float | None = None
    """The error of TF32 arithmetic where torch permits it: the tolerance takes it when it is larger than eager's."""
    wrong_specials: int
    """Elements where the oracle or the module has NaN or an infinity and the two differ."""
    passed: bool

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ratio(self) -> float | None:
        """RMS error relative to eager's; None when eager is exact."""
        return self.rms_generated / self.rms_eager if self.rms_eager else None


class SetResult(Frozen):
    """One input set."""

    name: str
    outputs: tuple[OutputError, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def passed(self) -> bool:
        return all(output.passed for output in self.outputs)


class EagerClass(Frozen):
    """Eager's largest error with TF32 convolutions allowed and not, relative to max|r|."""

    tf32: float
    fp32: float

    @computed_field  # type: ignore[prop-decorator]
    @property
    def uses_tf32(self) -> bool:
        return self.tf32 > 4 * self.fp32


class ProofResult(Frozen):
    """The rewrite proof, which holds: rounds of random sizes and values, and the largest relative difference."""

    rounds: int
    worst: float


class CheckReport(Frozen):
    """Everything that ``check`` found out."""

    model: str
    proof: ProofResult
    device: str | None
    """The GPU on which the kernels ran; None: only the proof was run."""
    torch: str
    same_state: bool | None = None
    """The same seed gives the reference and the generated module bitwise equal state."""
    repeatable: bool | None = None
    """A second call returned the same bits."""
    eager_class: EagerClass | None = None
    sets: tuple[SetResult, ...] = ()
    alone: tuple[SetResult, ...] = ()
    """The same for the part before the first flattening op (a softmax, a sigmoid), where there is one."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def passed(self) -> bool:
        ran = self.device is None or (self.same_state is True and self.repeatable is True and bool(self.sets))
        return ran and all(s.passed for s in (*self.sets, *self.alone))


def compare(
    name: str, y: torch.Tensor, e: torch.Tensor, r: torch.Tensor, tf32: torch.Tensor | None = None
) -> OutputError:
    """Measure ``y``, ``e`` and ``tf32`` against the float64 oracle ``r`` and apply the tolerance.

    ``tf32``: the result of TF32 arithmetic, where torch's settings permit it.
    """
    if y.shape != r.shape or y.dtype != e.dtype:
        raise MismatchError(
            f"{name} is {y.dtype}{tuple(y.shape)}, the reference's is {e.dtype}{tuple(r.shape)}",
        )
    y, e, r = map(real_parts, (y, e, r))
    tf32 = None if tf32 is None else real_parts(tf32)
    wrong = 0
    zero = torch.zeros((), dtype=torch.float64, device=r.device)
    compared = {"y": y, "e": e} if tf32 is None else {"y": y, "e": e, "t": tf32}
    largest = dict.fromkeys([*compared, "r"], zero)
    squares = dict(largest)
    count = 0
    flat = {key: t.detach().reshape(-1) for key, t in {**compared, "r": r}.items()}
    for start in range(0, r.numel(), CHUNK):
        chunk = {key: t[start : start + CHUNK].double() for key, t in flat.items()}
        yc, rc = chunk["y"], chunk["r"]
        if y.is_floating_point():  # a value beyond the output type's range is an infinity there
            narrow = rc.to(y.dtype)
            rc = torch.where(narrow.isinf(), narrow.double(), rc)
        finite = rc.isfinite()
        same = (yc == rc) | (yc.isnan() & rc.isnan())
        wrong += int(torch.where(finite, ~yc.isfinite(), ~same).sum())
        for key, value in chunk.items():
            good = finite & value.isfinite()
            error = torch.where(good, rc if key == "r" else value - rc, 0.0).abs()
            largest[key] = torch.maximum(largest[key], error.max())
            squares[key] = squares[key] + error.square().sum()
        count += int(finite.sum())
    top = {key: float(value) for key, value in largest.items()}
    rms = {key: (float(value) / max(count, 1)) ** 0.5 for key, value in squares.items()}
    max_allowed = max(2 * max(top["e"], top.get("t", 0.0)), 8 * EPS * top["r"])
    rms_allowed = 2 * max(rms["e"], rms.get("t", 0.0)) + 2 * EPS * rms["r"]
    return OutputError(
        output=name,
        shape=tuple(r.shape),
        max_generated=top["y"],
        max_eager=top["e"],
        max_allowed=max_allowed,
        rms_generated=rms["y"],
        rms_eager=rms["e"],
        rms_allowed=rms_allowed,
        max_tf32=top.get("t"),
        wrong_specials=wrong,
        passed=wrong == 0 and top["y"] <= max_allowed and rms["y"] <= rms_allowed,
    )


def copied(module: nn.Module) -> nn.Module:
    """A deep copy of ``module`` whose own functions (``self.f = lambda x: m(x)``) call the copies, too."""
    memo: dict[int, Any] = {}
    fresh: nn.Module = copy.deepcopy(module, memo)

    def cell(held: CellType) -> CellType:
        try:
            return CellType(memo.get(id(held.cell_contents), held.cell_contents))
        except ValueError:  # empty
            return held

    for part in fresh.modules():
        for name, value in vars(part).items():
            if isinstance(value, FunctionType) and value.__closure__:
                cells = tuple(map(cell, value.__closure__))
                rebound = FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells)
                rebound.__kwdefaults__ = value.__kwdefaults__
                vars(part)[name] = rebound
    return fresh


def _results(module: nn.Module, run: Callable[[nn.Module], list[torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Outputs of a fresh copy of ``module``, and the buffers that the call changed."""
    fresh = copied(module)
    found = {f"output {i}": value for i, value in enumerate(run(fresh))}
    before = dict(module.named_buffers())
    for name, value in fresh.named_buffers():
        if not torch.equal(value, before[name]):
            found[f"buffer {name}"] = value
    return found


def _rows(inputs: tuple[Any, ...], start: int, stop: int) -> tuple[Any, ...]:
    return tuple(x[start:stop] if isinstance(x, torch.Tensor) else x for x in inputs)


def _by_rows(module: nn.Module, inputs: tuple[Any, ...], step: int) -> list[torch.Tensor]:
    """The outputs of ``module`` on ``step`` rows of the batch at a time, joined."""
    batch = next(x.shape[0] for x in inputs if isinstance(x, torch.Tensor))
    parts = [call(module, _rows(inputs, i, min(i + step, batch))) for i in range(0, batch, step)]
    return [torch.cat(pieces) for pieces in zip(*parts, strict=True)]


def _separable(module: nn.Module, inputs: tuple[Any, ...]) -> bool:
    """True when rows of the batch do not influence each other, tried on the first two."""
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    if not tensors or any(x.dim() == 0 or x.shape[0] != tensors[0].shape[0] for x in tensors):
        return False
    two = _rows(inputs, 0, 2)
    together = call(module, two)
    if any(t.dim() == 0 or t.shape[0] != 2 for t in together):
        return False
    apart = _by_rows(module, two, 1)
    return all(
        torch.allclose(a, b, rtol=1e-10, atol=1e-12, equal_nan=True) for a, b in zip(together, apart, strict=True)
    )


@made_in_double()
def oracle(module: nn.Module, inputs: tuple[Any, ...]) -> list[torch.Tensor]:
    """The outputs of ``module`` (already float64); by slices of the batch where memory runs out."""
    try:
        return call(module, inputs)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
    step = next((x.shape[0] for x in inputs if isinstance(x, torch.Tensor) and x.dim()), 1)
    if step < 2 or not _separable(module, inputs):
        raise ToolchainError("the GPU's memory does not hold the float64 reference", hint="use smaller sizes")
    while step > 1:
        step = (step + 1) // 2
        try:
            return _by_rows(module, inputs, step)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
    raise ToolchainError("the GPU's memory does not hold one row of the float64 reference", hint="use smaller sizes")


def _offset(value: Any) -> Any:
    """``randn * 3`` plus a random offset for each (batch, channel), in the shape of ``value``."""
    if not (isinstance(value, torch.Tensor) and value.is_floating_point()):
        return value
    leading = value.shape[:2] + (1,) * max(value.dim() - 2, 0)
    offset = torch.randn(leading, device=value.device) * 3
    return torch.randn_like(value).mul_(3).add_(offset.to(value.dtype))


def _scale_weights(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point() or parameter.is_complex():
                parameter.mul_(16)
    return module


def _release() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def run_set(name: str, pair: tuple[nn.Module, nn.Module], inputs: tuple[Any, ...]) -> SetResult:
    """Hold the (reference, generated) ``pair`` to the tolerance on ``inputs``."""
    reference, generated = pair
    r = _results(doubled(copied(reference)), lambda m: oracle(m, tuple(map(double, inputs))))
    _release()
    e = _results(reference, lambda m: call(m, inputs))
    tf32 = tf32_results(lambda: _results(reference, lambda m: call(m, inputs))) or {}
    y = _results(generated, lambda m: call_generated(m, inputs))
    if y.keys() != e.keys():
        raise MismatchError(f"the generated module returns {sorted(y)}, the reference {sorted(e)}")
    outputs = tuple(compare(key, y[key], e[key], r[key], tf32.get(key)) for key in e)
    return SetResult(name=name, outputs=outputs)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    one, two = (t.detach().contiguous().view(-1).view(torch.uint8) for t in (a, b))
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(one, two)


def _same_state(subject: Subject) -> bool:
    """The same seed builds equal state, down to the bits (NaN included) and the order of the keys."""
    one = subject.build(subject.reference, "cpu").state_dict()
    two = subject.build(subject.generated, "cpu").state_dict()
    return list(one) == list(two) and all(_same_bits(one[k], two[k]) for k in one)


def _repeatable(generated: nn.Module, inputs: tuple[Any, ...]) -> bool:
    first, second = (_results(generated, lambda m: call_generated(m, inputs)) for _ in range(2))
    return first.keys() == second.keys() and all(_same_bits(first[k], second[k]) for k in first)


def _eager_class(reference: nn.Module, inputs: tuple[Any, ...]) -> EagerClass:
    r = oracle(doubled(copied(reference)), tuple(map(double, inputs)))
    scale = max(float(t.abs().max()) for t in r) or 1.0
    worst = []
    for allowed in (True, False):
        with tf32_convolutions(allowed):
            e = call(copied(reference), inputs)
        worst.append(max(float((double(a) - b).abs().max()) for a, b in zip(e, r, strict=True)) / scale)
    return EagerClass(tf32=worst[0], fp32=worst[1])


def has_convolution(graph: Graph) -> bool:
    """True when some node of ``graph``, regions included, is a convolution."""
    return any(
        isinstance(node.op, ConvOp) or (isinstance(node.op, RegionOp) and has_convolution(node.op.body))
        for node in graph.nodes
    )


@dataclass(frozen=True)
class _Runs:
    """What running a subject showed: see ``CheckReport``."""

    sets: tuple[SetResult, ...]
    repeatable: bool
    eager_class: EagerClass | None


def _run_sets(subject: Subject, device: torch.device, convolves: bool) -> _Runs:
    """Run ``subject`` on ``device`` against the oracle, on every input set."""
    with strict():
        reference, generated = (subject.build(f, device) for f in (subject.reference, subject.generated))
        inputs = subject.inputs_on(device)
        sets = [run_set("the file's inputs", (reference, generated), inputs)]
        repeatable = _repeatable(generated, inputs)
        eager_class = None
        if convolves:
            _release()
            eager_class = _eager_class(reference, inputs)
            with tf32_convolutions(False):
                sets.append(run_set("TF32 turned off", (reference, generated), inputs))
        _release()
        heavy = (_scale_weights(copied(reference)), _scale_weights(copied(generated)))
        sets.append(run_set("weights x16", heavy, inputs))
        del heavy
        _release()
        inputs = tuple(map(_offset, inputs))
        sets.append(run_set("randn*3 + offsets", (reference, generated), inputs))
    return _Runs(tuple(sets), repeatable, eager_class)


def check_numerics(subject: Subject, proof: ProofResult, device: torch.device, convolves: bool) -> CheckReport:
    """Run ``subject`` on ``device`` against the oracle, on every input set, and report beside ``proof``."""
    runs = _run_sets(subject, device, convolves)
    same_state = _same_state(subject)
    _release()
    return CheckReport(
        model=subject.name,
        proof=proof,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        torch=torch.__version__,
        same_state=same_state,
        repeatable=runs.repeatable,
        eager_class=runs.eager_class,
        sets=runs.sets,
    )


def check(compiled: Compiled, model: Path, generated: Path) -> CheckReport:
    """The proof that ``compiled`` carries; with a GPU, hold ``generated`` to the oracle on every input set too.

    Without a GPU the report's ``device`` is None and claims the proof alone.
    """
    proof = ProofResult(rounds=len(compiled.proof.sizes), worst=compiled.proof.worst)
    if not torch.cuda.is_available():
        return CheckReport(model=model.stem, proof=proof, device=None, torch=torch.__version__)
    graph, device = compiled.program.before, torch.device("cuda")
    subject = open_subject(model, generated, graph, compiled.program.evaluation)
    found = check_numerics(subject, proof, device, has_convolution(graph))
    part = before_flattening(graph)
    return found if part is None else found.replace(alone=check_part(subject, part, compiled.program.target, device))


def check_part(whole: Subject, part: Graph, target: str, device: torch.device) -> tuple[SetResult, ...]:
    """Compile ``part`` of the model of ``whole`` by itself and run it on every input set."""
    source = compile_graph(part, f"{whole.name}, in part", target=target, evaluation=whole.evaluation).source
    with tempfile.TemporaryDirectory(prefix="fusegen_") as folder:
        path = Path(folder) / "part.py"
        write_atomic(path, source)
        subject = part_subject(whole, part, path)
        return _run_sets(subject, device, has_convolution(part)).sets
