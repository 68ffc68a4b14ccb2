"""A drain of the Python twin that a signal handler ends with an exception leaves everything to the next drain."""

from __future__ import annotations

from types import CodeType

import pytest
from recording_helpers import Capture

from interruption import Interruption
from otel_recfn.model.batch import Event
from otel_recfn.recording.python.recorder import PythonRecorder
from thoroughness import one_in

CLEANING_UP = {"drain", "_keep"}
"""Where an exception is on its way already, or nothing can be kept any more."""
NEVER = 10**9


def counts(code: CodeType) -> bool:
    return "/recording/python/" in code.co_filename and code.co_name not in CLEANING_UP


def interrupt() -> None:
    raise KeyboardInterrupt


def interrupted_at(line: int) -> Interruption:
    return Interruption(line, interrupt, raises=True, counts=counts)


def record(recorder: PythonRecorder) -> None:
    with recorder.record_function("outer"):
        recorder.mark("moment")


def drained(recorder: PythonRecorder, interruption: Interruption) -> list[Event]:
    try:
        with interruption:
            batch = recorder.drain()
    except KeyboardInterrupt:
        return []
    return list(batch.events())


def lines_of_a_drain() -> int:
    recorder, nowhere = Capture(PythonRecorder()).recorder, interrupted_at(NEVER)
    record(recorder)
    assert len(drained(recorder, nowhere)) == 2
    return nowhere.lines


@pytest.mark.parametrize("first", [0.3, 0.6, 0.9])
def test_what_two_drains_in_a_row_could_not_deliver_comes_with_the_third(first: float) -> None:
    lines = lines_of_a_drain()
    for second in range(1, 2 * lines, one_in()):
        capture = Capture(PythonRecorder())
        recorder, rows = capture.recorder, []
        interruptions = [interrupted_at(line) for line in (int(first * lines), second)]
        for interruption in interruptions:
            record(recorder)
            rows += drained(recorder, interruption)
        record(recorder)
        rows += recorder.drain().events()
        places = [interruption.place for interruption in interruptions]
        assert places[0]
        assert sorted(row.name for row in rows) == ["moment"] * 3 + ["outer"] * 3, places
        assert capture.counters().recorded == 6
