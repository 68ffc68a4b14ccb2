"""A forked child has a thread of ours only when it records something."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from forked import in_child
from otel_recfn.batches.selection import Selected
from otel_recfn.model.events import EventSource, RecordScope
from otel_recfn.recording.recorder import Recorder
from otel_recfn.session import Session
from patience import wait_until
from running_capture import Running

pytestmark = [pytest.mark.one_python, pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")]

LONGER_THAN_IT_TAKES = 0.3
"""A thread of ours would be there by then."""


@pytest.fixture
def session(recorder: Recorder) -> Iterator[Session]:
    session = Session(recorder, [])
    yield session
    session.at_exit()


def record(recorder: Recorder) -> None:
    recorder.end(recorder.begin("range", RecordScope.USER_SCOPE, EventSource.RECORD_FUNCTION))


def drains() -> bool:
    return any(thread.name == "otel-recfn drain" for thread in threading.enumerate())


def test_one_that_records_nothing_has_none(recorder: Recorder, session: Session) -> None:
    running = Running(session, Selected())
    record(recorder)
    assert drains()

    def check() -> None:
        time.sleep(LONGER_THAN_IT_TAKES)
        assert threading.active_count() == 1
        running.stop()
        assert running.capture.rows == 0

    in_child(check)
    running.stop()


@pytest.mark.parametrize("generations", [1, 2])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_one_records_is_drained(recorder: Recorder, session: Session, generations: int, elsewhere: bool) -> None:
    """Also in a thread of its own, and in a child of its own."""
    running = Running(session, Selected())

    def check(left: int) -> None:
        if left > 1:
            in_child(lambda: check(left - 1))
        if elsewhere:
            thread = threading.Thread(target=record, args=(recorder,))
            thread.start()
            thread.join()
        else:
            record(recorder)
        wait_until(lambda: running.capture.rows == 1)
        assert drains()
        running.stop()
        assert not drains()

    in_child(lambda: check(generations))
    running.stop()
