"""An instrumentor that always ends, and what every test leaves behind: no thread of ours."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from otel_recfn import OtelRecordFunctionInstrumentor

THREAD_SECONDS = 10.0


@pytest.fixture
def instrumentor() -> Iterator[OtelRecordFunctionInstrumentor]:
    instrumentor = OtelRecordFunctionInstrumentor()
    yield instrumentor
    if instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()


@pytest.fixture(autouse=True)
def ends_its_threads() -> Iterator[None]:
    """A thread of ours that a test left would be taken for one of the next tests'."""
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("otel-recfn"):
            thread.join(THREAD_SECONDS)
            assert not thread.is_alive(), f"the thread {thread.name!r} goes on after the test"


def pytest_collection_finish() -> None:
    """The collector of garbage need not look at what was imported for the tests, each time that one asks it to run."""
    gc.collect()
    gc.freeze()
