"""Choices that a measurement may settle: planners name candidates, a file beside the model pins winners.

A planner asks ``choose(point, candidates)`` where its cost model is a guess. It gets its own first choice,
unless ``model.tuned.json`` names another; ``fusegen bench --tune`` measures the candidates and writes that
file. The generated text depends on the model and on that file alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from fusegen.errors import ModelFileError
from fusegen.ir import Frozen

T = TypeVar("T")
SUFFIX = ".tuned.json"


class Pins(Frozen):
    """The content of a tuning file: for a target, the chosen candidate's label by decision point."""

    target: str
    choices: dict[str, str]


@dataclass
class Choices:
    """The pins of a compilation, and the labels of every point that it came to, the planner's own choice first."""

    pins: Mapping[str, str]
    seen: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """With the expected seconds where the planner has an expectation."""

    def unknown(self) -> list[str]:
        """Pins of points or candidates that the compilation did not have."""
        return [f"{point} = {label}" for point, label in self.pins.items() if label not in self.seen.get(point, ())]


_active: ContextVar[Choices | None] = ContextVar("choices", default=None)


@contextmanager
def choices(pins: Mapping[str, str]) -> Iterator[Choices]:
    """Within it, decision points take what ``pins`` says."""
    found = Choices(dict(pins))
    token = _active.set(found)
    try:
        yield found
    finally:
        _active.reset(token)


def choose(point: str, candidates: Mapping[str, T], expected: Mapping[str, float] | None = None) -> T:
    """The pinned one of ``candidates`` (by label, the planner's own choice first), or the first.

    ``expected``: seconds by label, for ``explain``.
    """
    active = _active.get()
    label = next(iter(candidates))
    if active is not None:
        active.seen[point] = {name: (expected or {}).get(name) for name in candidates}
        label = next((name for name in candidates if name == active.pins.get(point)), label)
    return candidates[label]


def faster(point: str, candidates: Mapping[str, tuple[T, float]]) -> T:
    """The pinned one of ``candidates``, by label with their expected seconds, or the fastest; the first of equals."""
    ordered = sorted(candidates.items(), key=lambda item: item[1][1])
    answers = {label: answer for label, (answer, _) in ordered}
    return choose(point, answers, {label: seconds for label, (_, seconds) in ordered})


def kernel_or_library(node: str, ours: float, library: float, reason: str) -> str | None:
    """Who computes ``node``, by the expected seconds: None when a kernel does, else the ``reason`` why not."""
    return faster(f"{node} by", {"kernel": (None, ours), "library": (reason, library)})


def together_or_apart(node: str, together: float, apart: float) -> str | None:
    """Whether ``node`` is part of its convolution's kernel, by the expected seconds: None, or the reason why not."""
    reason = f"with the convolution expected to take {together * 1e6:.0f} us, apart {apart * 1e6:.0f} us"
    return faster(f"{node} in", {"the convolution's kernel": (None, together), "a kernel of its own": (reason, apart)})


def pins_path(model: Path) -> Path:
    """The tuning file of a model file."""
    return model.with_suffix(SUFFIX)


def read_pins(model: Path, target: str) -> dict[str, str]:
    """The pinned choices for ``model`` on ``target``. Raises ``ModelFileError`` when the file is not one of ours."""
    path = pins_path(model)
    if not path.is_file():
        return {}
    try:
        pins = Pins.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        raise ModelFileError(
            f"{path.name} is no tuning file: {error}", hint="run `fusegen bench --tune` again"
        ) from error
    return dict(pins.choices) if pins.target == target else {}
