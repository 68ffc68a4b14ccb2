"""A Chrome trace, compressed and not, and a sink that writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_recfn.sinks.chrome.sink import ChromeTraceSink
from small_process import in_small_process  # noqa: F401


@pytest.fixture(params=[".json", ".json.gz"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"trace{request.param}"


@pytest.fixture
def sink(path: Path) -> Iterator[ChromeTraceSink]:
    sink = ChromeTraceSink(path)
    yield sink
    sink.close(1.0)
