"""Ranges that are open for long are told while they are open, to sinks that ask for them, and
come as rows when they end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from helpers import source_calls
from helpers.recording_helpers import Clock
from helpers.timeouts import PATIENCE_S, wait_until
from otel_recfn.batches.selection import Selected
from otel_recfn.model.batch import Batch, Event
from otel_recfn.model.events import EventFlag, EventSource, RecordScope
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES
from otel_recfn.session.capture import Capture
from otel_recfn.session.session import Session
from otel_recfn.sinks.in_memory import InMemorySink
from otel_recfn.sinks.protocol import Sink

USER = RecordScope.USER_SCOPE


class OpenRangesSink(InMemorySink):
    """A sink that is told of open ranges: each time it is, the names."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[list[Event]] = []

    def write(self, batch: Batch) -> None:
        super().write(batch)
        if batch.long_open is not None:
            self.reports.append(list(batch.long_open.events()))

    def after_fork_in_child(self) -> Sink | None:
        return OpenRangesSink()

    def names(self) -> list[str]:
        """Of what was told last."""
        return sorted(event.name for event in self.reports[-1]) if self.reports else []


class Looked:
    """A session that looks when it is flushed, if the clock says so; what is open for a
    nanosecond is told.
    """

    def __init__(
        self, recorder: Recorder, clock: Clock, open_range_s: float | None = 1e-9, **selected: Any
    ) -> None:
        self.recorder = recorder
        self.clock = clock
        self.session = Session(recorder)
        self.sink = OpenRangesSink()
        self.capture = self.start(self.sink, open_range_s, **selected)

    def start(self, sink: Sink, open_range_s: float | None, **selected: Any) -> Capture:
        capture = Capture(
            Selected(**selected),
            [sink],
            buffer_bytes=DEFAULT_BUFFER_BYTES,
            open_range_s=open_range_s,
        )
        self.session.start(capture)
        return capture

    def begin(self, name: str, scope: RecordScope = USER, flags: int = 0) -> int:
        return source_calls.begin(name, scope, EventSource.RECORD_FUNCTION, flags=flags)

    def look(self) -> list[str]:
        """Names of what is told now."""
        self.clock.now_s += 1
        assert self.session.flush(self.capture, PATIENCE_S)
        return self.sink.names()


@pytest.fixture
def make(recorder: Recorder, clock: Clock) -> Iterator[Callable[..., Looked]]:
    made: list[Looked] = []

    def make(*arguments: Any, **keywords: Any) -> Looked:
        made.append(Looked(recorder, clock, *arguments, **keywords))
        return made[-1]

    yield make
    for each in made:
        each.session.at_exit()


def test_a_range_that_hangs_is_told_although_nothing_else_happens(recorder: Recorder) -> None:
    sink = OpenRangesSink()
    session = Session(recorder)
    session.start(Capture(Selected(), [sink], buffer_bytes=DEFAULT_BUFFER_BYTES, open_range_s=0.05))
    try:
        outer = source_calls.begin("outer", USER, EventSource.RECORD_FUNCTION)
        inner = source_calls.begin("inner", USER, EventSource.RECORD_FUNCTION)
        wait_until(lambda: sink.names() == ["inner", "outer"])
        reports = {event.event_id: event for event in sink.reports[-1]}
        assert reports[inner].parent == outer
        assert all(
            event.flags & EventFlag.PARTIAL and event.duration_ns >= 50_000_000
            for event in reports.values()
        )
        assert sink.events() == []
        source_calls.end(inner)
        source_calls.end(outer)
        wait_until(lambda: sink.reports[-1] == [])
    finally:
        session.at_exit()
    assert [(event.event_id, event.flags & EventFlag.PARTIAL) for event in sink.events()] == [
        (outer, 0),
        (inner, 0),
    ]


def test_sinks_that_do_not_ask_are_not_told_and_a_sink_that_raises_is_removed(
    make: Callable[..., Looked], caplog: pytest.LogCaptureFixture
) -> None:
    class Raises(OpenRangesSink):
        name = "raises"

        def write(self, batch: Batch) -> None:
            if batch.long_open is not None:
                raise ValueError("no")

    looked = make()
    plain = InMemorySink()
    raising = Raises()
    beside = OpenRangesSink()
    several = Capture(
        Selected(), [plain, raising, beside], buffer_bytes=DEFAULT_BUFFER_BYTES, open_range_s=1e-9
    )
    looked.session.start(several)
    source_calls.end(looked.begin("short"))
    event_id = looked.begin("open")
    looked.look()
    assert "the sink 'raises' failed and was removed" in caplog.text
    assert (beside.names(), [event.name for event in plain.events()]) == (["open"], ["short"])
    source_calls.end(event_id)
    looked.session.stop(several, PATIENCE_S)
    assert (
        [event.name for event in plain.events()]
        == [event.name for event in beside.events()]
        == ["short", "open"]
    )


def test_each_capture_is_told_of_what_it_sees(make: Callable[..., Looked]) -> None:
    looked = make(scopes=1 << RecordScope.FUNCTION)
    earlier = looked.begin("earlier", RecordScope.FUNCTION)
    later = OpenRangesSink()
    untold = OpenRangesSink()
    looked.start(later, 1e-9)
    looked.start(untold, None)
    user = looked.begin("user")
    function = looked.begin("function", RecordScope.FUNCTION)
    assert looked.look() == ["earlier", "function"]
    parents = {event.event_id: event.parent for event in looked.sink.reports[-1]}
    assert parents == {earlier: 0, function: earlier}
    assert later.names() == ["function", "user"]
    assert {event.event_id: event.parent for event in later.reports[-1]} == {
        user: 0,
        function: user,
    }
    assert untold.reports == []


def test_a_sink_hears_of_open_ranges_after_the_time_that_it_asks_for(
    make: Callable[..., Looked],
) -> None:
    class Soon(OpenRangesSink):
        open_range_s = 1e-9

    looked = make(open_range_s=3600.0)
    soon = Soon()
    looked.session.start(
        Capture(
            Selected(),
            [soon, looked.sink],
            buffer_bytes=DEFAULT_BUFFER_BYTES,
            open_range_s=3600.0,
        )
    )
    event_id = looked.begin("open")
    assert looked.look() == []
    assert soon.names() == ["open"]
    source_calls.end(event_id)
    looked.look()
    assert soon.reports[-1] == []


def test_a_capture_without_open_ranges_has_none_for_any_sink(make: Callable[..., Looked]) -> None:
    class Soon(OpenRangesSink):
        open_range_s = 1e-9

    looked = make(open_range_s=None)
    soon = Soon()
    looked.session.start(
        Capture(Selected(), [soon], buffer_bytes=DEFAULT_BUFFER_BYTES, open_range_s=None)
    )
    event_id = looked.begin("open")
    looked.look()
    assert soon.reports == []
    source_calls.end(event_id)
