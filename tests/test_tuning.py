"""Decision points: what pins change, what the search settles, and files that fit no longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusegen.compiler import Compiled, compile_file
from fusegen.errors import ModelFileError, TargetError
from fusegen.tuning import Pins, choices, choose, pins_path
from fusegen.verdict.tune import search
from tests.models import write

POINT = "conv2d_r2 by"
"""The convolution's node once its bias is an addition."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A convolution that the planner gives a kernel."""
    return write(tmp_path, "return self.m(x).relu() * 2", "self.m = nn.Conv2d(8, 64, 3)", "torch.rand(32, 8, 128, 128)")


def kinds(compiled: Compiled) -> list[str]:
    return [step.kind for step in compiled.program.steps]


def test_the_first_candidate_is_taken_unless_another_is_pinned() -> None:
    assert choose("tile", {"wide": 2, "narrow": 1}) == 2
    with choices({"tile": "narrow"}) as settled:
        assert choose("tile", {"wide": 2, "narrow": 1}) == 1
        assert choose("stages", {"3": 3, "2": 2}) == 3
    assert {point: list(labels) for point, labels in settled.seen.items()} == {
        "tile": ["wide", "narrow"],
        "stages": ["3", "2"],
    }
    assert settled.unknown() == []
    with choices({"tile": "none such"}) as settled:
        assert choose("tile", {"wide": 2, "narrow": 1}) == 2
    assert settled.unknown() == ["tile = none such"]


def test_a_tuning_file_beside_the_model_decides(model: Path) -> None:
    planned = compile_file(model)
    kernel, library = planned.choices[POINT].items()
    assert (kernel[0], library[0]) == ("kernel", "library")
    assert kernel[1] is not None
    assert library[1] is not None
    assert kernel[1] < library[1]
    assert kinds(planned) == ["kernel"]
    pins_path(model).write_text(Pins(target="sm_90", choices={POINT: "library"}).model_dump_json())
    tuned = compile_file(model)
    assert kinds(tuned) == ["eager", "kernel"]
    assert f"tuned: {POINT} = library" in tuned.notes
    assert kinds(compile_file(model, target="sm_80")) == kinds(compile_file(model, target="sm_80", pins={}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"target": "sm_90", "choices": {"conv2d by": "magic"}}', "conv2d by = magic"),
        ('{"target": "sm_90", "choices": {"conv9 by": "library"}}', "conv9 by = library"),
        ('{"target": "sm_90"', "is no tuning file"),
    ],
)
def test_a_file_that_does_not_fit_is_an_error(text: str, message: str, model: Path) -> None:
    pins_path(model).write_text(text)
    with pytest.raises(ModelFileError, match=message):
        compile_file(model)


def test_the_search_keeps_what_is_clearly_faster(model: Path) -> None:
    times = {"kernel": 1.0, "library": 0.7}

    def build(pins: dict[str, str]) -> Compiled:
        return compile_file(model, pins=pins)

    def measure(compiled: Compiled) -> float:
        return times["kernel" if kinds(compiled) == ["kernel"] else "library"]

    found = search(model.name, "sm_90", build, measure)
    assert (found.before_ms, found.after_ms, found.pinned) == (1.0, 0.7, {POINT: "library"})
    assert {(c.label, c.ms) for c in found.candidates if c.point == POINT} == {("kernel", 1.0), ("library", 0.7)}
    times["library"] = 0.99  # within the noise
    found = search(model.name, "sm_90", build, measure)
    assert (found.after_ms, found.pinned) == (1.0, {})


def test_a_candidate_that_does_not_compile_is_reported(model: Path) -> None:
    def build(pins: dict[str, str]) -> Compiled:
        if pins:
            raise TargetError("no such tile")
        return compile_file(model, pins=pins)

    found = search(model.name, "sm_90", build, lambda compiled: 1.0)
    assert [c.reason for c in found.candidates if c.ms is None] == ["no such tile"] * (
        len(found.candidates) - len({c.point for c in found.candidates})
    )


@pytest.mark.parametrize(
    ("body", "init", "inputs"),
    [
        ("return self.m(x).relu() * 2", "self.m = nn.Conv2d(64, 96, 3)", "torch.rand(32, 64, 64, 64)"),
        ("return F.gelu(self.m(x)) * 2", "self.m = nn.Linear(2048, 4096)", "torch.rand(1024, 2048)"),
    ],
)
def test_every_tile_may_be_pinned(body: str, init: str, inputs: str, tmp_path: Path) -> None:
    path = write(tmp_path, body, init, inputs)
    planned = compile_file(path)
    (point,) = (name for name in planned.choices if name.endswith(" tile"))
    texts = [compile_file(path, pins={point: label}).source for label in planned.choices[point]]
    assert len(set(texts)) == len(texts) > 1
    assert texts[0] == planned.source
