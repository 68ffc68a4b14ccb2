"""A Chrome trace, compressed and not, and a writer of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_recfn.sinks.chrome.writer import TraceWriter


@pytest.fixture(params=[".json", ".json.gz"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"trace{request.param}"


@pytest.fixture
def writer(path: Path) -> Iterator[TraceWriter]:
    writer = TraceWriter(path)
    yield writer
    writer.close()
