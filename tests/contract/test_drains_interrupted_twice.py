"""A drain of the Python twin that a signal handler ends with an exception leaves everything to the next drain."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
from recording_helpers import Capture

from cleanup_lines import lines_that_clean_up
from otel_recfn.model.batch import Event
from otel_recfn.recording.python.recorder import PythonRecorder

CLEANING_UP = {"drain", "_keep"}
"""Where an exception is on its way already, or nothing can be kept any more."""


class Interruption:
    """Raises KeyboardInterrupt before the Nth line of the Python recorder that this thread runs."""

    def __init__(self, line: int) -> None:
        self.left, self.place = line, ""

    def __enter__(self) -> Interruption:
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _called(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        is_ours = "/recording/python/" in frame.f_code.co_filename
        return self._line if is_ours and frame.f_code.co_name not in CLEANING_UP else None

    def _line(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "line" and frame.f_lineno not in lines_that_clean_up(frame.f_code.co_filename):
            self.left -= 1
            if self.left == 0:
                self.place = f"{frame.f_code.co_name}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self._line


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
    recorder, nowhere = Capture(PythonRecorder()).recorder, Interruption(0)
    record(recorder)
    assert len(drained(recorder, nowhere)) == 2
    return -nowhere.left


@pytest.mark.parametrize("first", [0.3, 0.6, 0.9])
def test_what_two_drains_in_a_row_could_not_deliver_comes_with_the_third(first: float) -> None:
    lines = lines_of_a_drain()
    for second in range(1, 2 * lines):
        capture = Capture(PythonRecorder())
        recorder, rows = capture.recorder, []
        interruptions = [Interruption(line) for line in (int(first * lines), second, 0)]
        for interruption in interruptions:
            record(recorder)
            rows += drained(recorder, interruption)
        places = [interruption.place for interruption in interruptions]
        assert places[0]
        assert sorted(row.name for row in rows) == ["moment"] * 3 + ["outer"] * 3, places
        assert capture.counters().recorded == 6
