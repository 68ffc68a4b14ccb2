"""A Chrome trace, compressed and not, and a sink that writes it; background sinks that end with their test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gated import Gated, MakeSink

from otel_recfn.sinks.background import BackgroundSink
from otel_recfn.sinks.chrome.sink import ChromeTraceSink
from otel_recfn.sinks.protocol import Sink
from patience import PATIENCE_S


@pytest.fixture(params=[".json", ".json.gz"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"trace{request.param}"


@pytest.fixture
def sink(path: Path) -> Iterator[ChromeTraceSink]:
    sink = ChromeTraceSink(path)
    yield sink
    sink.close(1.0)


@pytest.fixture
def in_background() -> Iterator[MakeSink]:
    """Makes background sinks, which end with the test."""
    made: list[tuple[BackgroundSink, Sink]] = []

    def make(inner: Sink, max_rows: int = 1000, **keywords: Any) -> BackgroundSink:
        made.append((BackgroundSink(inner, max_rows, **keywords), inner))
        return made[-1][0]

    yield make
    for sink, inner in made:
        if isinstance(inner, Gated):
            inner.gate.set()
        sink.close(PATIENCE_S)


@pytest.fixture
def hung() -> Gated:
    """A sink that hangs in its first write until the test is over."""
    return Gated(is_open=False)
