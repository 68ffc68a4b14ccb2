"""Spans sinks that end with their test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from spans_harness import MADE


@pytest.fixture(autouse=True)
def closes_sinks() -> Iterator[None]:
    yield
    while MADE:
        MADE.pop().close(0.0)
