"""An instrumentor that always ends, patience, and what every test leaves behind: no thread of
ours.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from helpers.deselected_files import is_left_out
from helpers.example_counts import BRIEF
from helpers.jaeger_binary import JAEGER as JAEGER  # taken out of the environment before any test
from helpers.timeouts import PATIENCE_S, let_time_pass
from otel_recfn import OtelRecordFunctionInstrumentor
from otel_recfn import instrumentor as instrumenting
from otel_recfn.legacy import run as legacy_run
from otel_recfn.recording.watched import Watched
from otel_recfn.session import kept_recording

settings.register_profile(
    "patient",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
# Where the same ran in full elsewhere.
settings.register_profile("brief", settings.get_profile("patient"), max_examples=BRIEF)
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture's end gives up on its sinks after some seconds, which a busy machine may need."""
    for module in (instrumenting, kept_recording, legacy_run):
        monkeypatch.setattr(module, "STOP_SECONDS", PATIENCE_S)


@pytest.fixture(autouse=True)
def without_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine takes samples of any instrumented program, whose spans then differ: tests of
    samples ask for them.
    """
    monkeypatch.setenv("OTEL_RECFN_OUTSIDE", "false")


@pytest.fixture
def instrumentor() -> Iterator[OtelRecordFunctionInstrumentor]:
    made = OtelRecordFunctionInstrumentor()
    yield made
    if made.is_instrumented_by_opentelemetry:
        made.uninstrument()


@pytest.fixture
def nobody_watches() -> None:
    """Recorders that earlier tests didn't stop watch until the collector of garbage finds them."""
    if Watched.now:
        gc.collect()
    assert not Watched.now


@pytest.fixture(autouse=True)
def ends_its_threads() -> Iterator[None]:
    """A thread of ours that a test left would be taken for one of the next tests'."""
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("otel-recfn"):
            # Another thread is starting it.
            while thread in threading.enumerate() and not thread.is_alive():
                let_time_pass(100_000)
            if thread.is_alive():
                thread.join(PATIENCE_S)
            assert not thread.is_alive(), f"the thread {thread.name!r} goes on after the test"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return is_left_out(collection_path, config.getoption("markexpr")) or None


gc.disable()  # until all tests are collected, of which few objects become garbage


def pytest_collection_finish() -> None:
    """The collector of garbage need not look at what was imported for the tests, each time that
    one asks it to run.
    """
    gc.enable()
    gc.collect()
    gc.freeze()
