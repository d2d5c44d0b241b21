"""Which conditions on sizes a trace needs, and how often it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusegen import guards
from tests.models import traced, write

NAMES = ["a", "b", "c", "d"]
SIZES = dict.fromkeys(NAMES, 8)
GROUPS = st.sets(st.frozensets(st.sampled_from(NAMES), min_size=1), max_size=4)


def _ones(sizes: Mapping[str, int]) -> frozenset[str]:
    return frozenset(name for name, size in sizes.items() if size == 1)


@settings(max_examples=200, deadline=None)
@given(faults=GROUPS)
def test_the_least_groups_that_change_the_graph_are_found(faults: set[frozenset[str]]) -> None:
    asked: list[frozenset[str]] = []

    def same(sizes: Mapping[str, int]) -> bool:
        asked.append(_ones(sizes))
        return not any(fault <= _ones(sizes) for fault in faults)

    least = {fault for fault in faults if not any(other < fault for other in faults)}
    found = guards._groups_of_ones(SIZES, NAMES, [], same)
    assert {frozenset(condition.removesuffix(" > 1").split("*")) for condition in found} == least
    assert len(asked) == len(set(asked))


@given(faults=GROUPS)
def test_groups_that_no_call_has_are_not_asked_for(faults: set[frozenset[str]]) -> None:
    """Of what may be 1 together, no more is traced."""

    def same(sizes: Mapping[str, int]) -> bool:
        assert not {"a", "b"} <= _ones(sizes)
        return not any(fault <= _ones(sizes) for fault in faults)

    assert guards._groups_of_ones(SIZES, NAMES, ["a*b > 1"], same) == ()


@pytest.mark.parametrize(
    ("names", "fault", "most"),
    [("bhw", "hw", 4), ("bdhw", "dhw", 5), ("abhw", "hw", 7), ("bhw", "b", 6), ("bhw", "", 1)],
)
def test_a_pooling_over_all_positions_takes_few_traces(names: str, fault: str, most: int) -> None:
    asked = 0

    def same(sizes: Mapping[str, int]) -> bool:
        nonlocal asked
        asked += 1
        return not fault or not set(fault) <= _ones(sizes)

    guards._groups_of_ones(dict.fromkeys(names, 8), list(names), [], same)
    assert asked <= most


def test_what_a_group_of_ones_does_not_change_is_not_asked_of_its_parts(tmp_path: Path) -> None:
    graph = traced(write(tmp_path, "return x.relu()", inputs="torch.rand(8, 8, 8)")).graph
    asked: list[frozenset[str]] = []

    def same(sizes: Mapping[str, int]) -> bool:
        asked.append(_ones(sizes))
        return len(_ones(sizes)) < 3

    questions = ("x0_1 != 1", "x0_2 != 1")
    assert guards.settle(graph.replace(constraints=questions), same).constraints == ("x0_0*x0_1*x0_2 > 1",)
    assert not any(len(ones) == 1 for ones in asked)
