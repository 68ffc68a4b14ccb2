"""The tracer of Python calls and threads: which are traced, from when on, and as whom."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from calling_program import Traced, short

from otel_recfn.recording.protocol import Recorder
from otel_recfn.support.own_thread import OwnThread
from patience import PATIENCE_S


@pytest.fixture
def traced(recorder: Recorder, no_garbage_collection: None) -> Iterator[Traced]:
    made = Traced(recorder)
    yield made
    made.close()


def leaf() -> int:
    return len("leaf")


def run_in(thread: threading.Thread) -> None:
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_thread_has_its_name(traced: Traced) -> None:
    rows = traced.run(lambda: run_in(threading.Thread(target=leaf, name="worker of the test")))
    [row] = [row for row in rows if short(row) == "leaf"]
    assert row.thread.name == "worker of the test"
    assert {short(row) for row in rows} >= {"_bootstrap", "_bootstrap_inner", "run"}


def test_threads_of_ours_are_not_traced(traced: Traced) -> None:
    rows = traced.run(lambda: run_in(OwnThread(leaf, "otel-recfn of the test")))
    assert "run_in" in {short(row) for row in rows}
    assert not {row.thread.name for row in rows if row.thread.name.startswith("otel-recfn")}
    assert not [row for row in rows if short(row) in ("leaf", "_bootstrap", "_bootstrap_inner")]
