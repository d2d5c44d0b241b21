"""Markers: ``gpu`` tests are skipped where there is no CUDA device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

from fusegen.costs import direct_shared, direct_tiles

hypothesis.settings.register_profile("unhurried", deadline=None)  # tests beside this one take time
hypothesis.settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite generated/ where it differs, and fail")
    parser.addoption("--chains", type=int, default=300, help="random models to run on the GPU")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """True when this run rewrites golden files."""
    return bool(request.config.getoption("--update-golden"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _tiles_by_the_tests_own_numbers() -> Iterator[None]:
    """Tests change what tiles go by, which are kept from call to call."""
    caches = (direct_shared.Work.tiles, direct_tiles.tiles)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.fixture(scope="session")
def specs() -> Path:
    """The folder of reference models."""
    return Path(__file__).resolve().parent.parent / "specs"
