"""GPU tests run the fast path or fail: falling back to the reference is an error unless a test allows it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FUSEGEN_STRICT", "1")
    yield
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the generated module take its reference path."""
    monkeypatch.delenv("FUSEGEN_STRICT")
