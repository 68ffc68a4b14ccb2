"""Sealed batches beside the drain: they go the recorder's way, to captures' views and sinks, in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from test_sources import Running, Ticks

from batches import make_batch
from otel_recfn.batches.selection import RECORD_FUNCTIONS, Selected
from otel_recfn.model.batch import Batch, Opened, Track
from otel_recfn.model.events import EventSource, TrackKind, make_event_id
from otel_recfn.model.scope import RecordScope
from otel_recfn.model.tables import NO_CONTEXT, SpanContextRef
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import ContextReading
from otel_recfn.session import Session
from otel_recfn.sources.protocol import Producer
from patience import PATIENCE_S

USER = RecordScope.USER_SCOPE
WITH_KERNELS = RECORD_FUNCTIONS | {EventSource.MODULE}
"""Kernels stand in for a source of their own by the one whose rows are asked for as a whole."""


class Stream(Ticks):
    """A producer with a track of its own, whose ranges end when they are told."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder, "stream")
        number = recorder.new_track()
        self.track = Track(number, 0, 0, 0, "stream 7", TrackKind.STREAM)
        self.batches: list[Batch] = []
        self.lasts: list[bool] = []
        self.error: BaseException | None = None
        self.kernels = 0

    def kernel(self, name: str, *, parent: int = 0) -> int:
        """A batch of one row, which says what a producer has to say, and no root."""
        row = self.row(name, parent)
        self.batches.append(make_batch([row]))
        return int(row["event_id"])

    def row(self, name: str, parent: int = 0) -> dict[str, Any]:
        self.kernels += 1
        event_id, now = make_event_id(self.track.number, self.kernels), time.time_ns()
        row: dict[str, Any] = {"event_id": event_id, "name": name, "thread": self.track, "source": EventSource.MODULE}
        return row | {"start_ns": now, "end_ns": now + 5, "parent": parent, "root": 0}

    def take(self, *, last: bool) -> Sequence[Batch]:
        self.lasts.append(last)
        error, self.error = self.error, None
        if error is not None:
            raise error
        taken, self.batches = self.batches, []
        return taken


@pytest.fixture
def stream(recorder: Recorder) -> Stream:
    return Stream(recorder)


@pytest.fixture
def session(recorder: Recorder, stream: Stream) -> Iterator[Session]:
    session = Session(recorder, [stream])
    yield session
    session.at_exit()


def test_a_source_with_batches_is_a_producer(stream: Stream, recorder: Recorder) -> None:
    assert isinstance(stream, Producer)
    assert not isinstance(Ticks(recorder), Producer)


def test_no_track_has_a_threads_number(recorder: Recorder) -> None:
    recorder.start(1 << USER, 1 << 20)
    tracks = [recorder.new_track()]
    thread = recorder.begin("range", USER, EventSource.RECORD_FUNCTION) >> 40
    tracks += [recorder.new_track(), recorder.new_track()]
    assert len({thread, *tracks}) == 4
    recorder.stop()
    recorder.drain(close_open=True)


def test_its_rows_come_after_the_recorders_and_count_as_rows(recorder: Recorder, session: Session, stream: Stream) -> None:
    running = Running(session, Selected(sources=WITH_KERNELS))
    outer = recorder.begin("launch", USER, EventSource.RECORD_FUNCTION)
    stream.kernel("kernel", parent=outer)
    recorder.end(outer)
    assert session.flush(running.capture, PATIENCE_S)
    stream.kernel("late")
    running.stop()
    launch, kernel, late = running.sink.events()
    assert [event.name for event in (launch, kernel, late)] == ["launch", "kernel", "late"]
    assert (kernel.parent, kernel.thread.name) == (launch.event_id, "stream 7")
    assert session.counters(running.capture)["rows"] == 3
    assert (stream.lasts[-1], any(stream.lasts[:-1])) == (True, False)


def test_it_is_not_asked_where_no_capture_wants_its_rows(session: Session, stream: Stream) -> None:
    stream.kernel("nobody's")
    running = Running(session, Selected())
    assert session.flush(running.capture, PATIENCE_S)
    assert running.stop().names() == []
    assert stream.lasts == []


def test_each_capture_has_its_view_also_below_ranges_that_are_open(
    recorder: Recorder, session: Session, stream: Stream
) -> None:
    everything = Running(session, Selected(sources=WITH_KERNELS))
    kernels = Running(session, Selected(1 << RecordScope.FUNCTION, sources=WITH_KERNELS))
    ranges = Running(session, Selected())
    outer = recorder.begin("outer", RecordScope.FUNCTION, EventSource.TORCH)
    inner = recorder.begin("inner", USER, EventSource.RECORD_FUNCTION)
    kernel = stream.kernel("kernel", parent=inner)
    assert session.flush(everything.capture, PATIENCE_S)
    recorder.end(inner)
    recorder.end(outer)
    seen = [{event.name: event for event in each.stop().sink.events()} for each in (everything, kernels, ranges)]
    assert [sorted(events) for events in seen] == [["inner", "kernel", "outer"], ["kernel", "outer"], ["inner", "outer"]]
    assert [events["kernel"].event_id for events in seen[:2]] == [kernel, kernel]
    assert [events["kernel"].parent for events in seen[:2]] == [inner, outer]
    assert [events["kernel"].root for events in seen[:2]] == [outer, outer]


def test_what_began_before_a_capture_is_not_in_it(session: Session, stream: Stream) -> None:
    first = Running(session, Selected(sources=WITH_KERNELS))
    stream.kernel("before")
    late, stream.batches = stream.batches, []  # it runs while the second capture begins
    second = Running(session, Selected(sources=WITH_KERNELS))
    stream.batches = late
    stream.kernel("after")
    assert (first.stop().names(), second.stop().names()) == (["before", "after"], ["after"])


def test_top_level_ranges_are_announced_in_every_view(session: Session, stream: Stream) -> None:
    announced: list[list[Opened]] = []

    def noting(running: Running) -> Callable[[Batch], None]:
        opened: list[Opened] = []
        announced.append(opened)
        write = running.sink.write
        return lambda batch: (opened.extend(batch.opened), write(batch))[1]

    captures = [Running(session, Selected(sources=WITH_KERNELS)) for _ in range(2)]
    for running in captures:
        running.sink.write = noting(running)  # type: ignore[method-assign]
    kernel = stream.kernel("kernel")
    for running in captures:
        running.stop()
    assert [[opened.event_id for opened in each] for each in announced] == [[kernel], [kernel]]


def test_one_that_fails_is_asked_no_more_and_the_rest_goes_on(
    recorder: Recorder, session: Session, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    running = Running(session, Selected(sources=WITH_KERNELS))
    stream.error = ValueError("of its own")
    for name in ("one", "two"):
        recorder.end(recorder.begin(name, USER, EventSource.RECORD_FUNCTION))
        assert session.flush(running.capture, PATIENCE_S)
    assert running.stop().names() == ["one", "two"]
    assert caplog.text.count("the source 'stream' failed and is used no more") == 1
    assert not stream.enabled


SPAN = ContextReading(trace_id=5, span_id=7, flags=1, enclosing=0)


def test_it_says_parents_alone_and_its_rows_have_their_roots_and_contexts(
    recorder: Recorder, session: Session, stream: Stream
) -> None:
    running = Running(session, Selected(sources=WITH_KERNELS))
    recorder.set_context_reader(lambda: SPAN)
    outer = recorder.begin("outer", USER, EventSource.RECORD_FUNCTION)
    inner = recorder.begin("inner", USER, EventSource.RECORD_FUNCTION)
    below = stream.kernel("below an open range", parent=inner)
    assert session.flush(running.capture, PATIENCE_S)
    recorder.end(inner)
    recorder.end(outer)
    assert session.flush(running.capture, PATIENCE_S)
    recorder.set_context_reader(None)
    stream.kernel("below one that ended", parent=inner)
    stream.kernel("below a kernel of an earlier batch", parent=below)
    stream.kernel("below nothing")
    events = {event.name: event for event in running.stop().sink.events()}
    alone = events.pop("below nothing")
    assert {event.root for event in events.values()} == {outer}
    assert {event.context for event in events.values()} == {SpanContextRef(5, 7, 1)}
    assert (alone.root, alone.context) == (alone.event_id, NO_CONTEXT)
    assert events["below one that ended"].parent == inner


def test_rows_of_one_batch_may_lie_in_each_other(recorder: Recorder, session: Session, stream: Stream) -> None:
    running = Running(session, Selected(sources=WITH_KERNELS))
    launch = recorder.begin("launch", USER, EventSource.RECORD_FUNCTION)
    graph = stream.row("graph", launch)
    stream.batches.append(make_batch([stream.row("kernel", graph["event_id"]), graph]))
    assert session.flush(running.capture, PATIENCE_S)
    recorder.end(launch)
    events = running.stop().sink.events()
    assert {event.name: event.parent for event in events} == {"kernel": graph["event_id"], "graph": launch, "launch": 0}
    assert {event.root for event in events} == {launch}


@pytest.mark.parametrize("captures", [1, 2])
def test_a_row_below_a_range_that_nobody_recorded_is_top_level(session: Session, stream: Stream, captures: int) -> None:
    running = [Running(session, Selected(sources=WITH_KERNELS)) for _ in range(captures)]
    announced: list[Opened] = []
    write = running[0].sink.write
    running[0].sink.write = lambda batch: (announced.extend(batch.opened), write(batch))[1]  # type: ignore[method-assign]
    kernel = stream.kernel("kernel", parent=make_event_id(12345, 6))
    for each in running:
        (event,) = each.stop().sink.events()
        assert (event.parent, event.root) == (0, kernel)
    assert [opened.event_id for opened in announced] == [kernel]


def test_a_range_that_began_just_before_the_producer_was_asked_is_known(
    recorder: Recorder, session: Session, stream: Stream
) -> None:
    running = Running(session, Selected(sources=WITH_KERNELS))
    launched: list[int] = []
    take = stream.take

    def take_late(*, last: bool) -> Sequence[Batch]:
        if not launched:
            launched.append(recorder.begin("launch", USER, EventSource.RECORD_FUNCTION))
            stream.kernel("kernel", parent=launched[0])
        return take(last=last)

    stream.take = take_late  # type: ignore[method-assign]
    assert session.flush(running.capture, PATIENCE_S)
    recorder.end(launched[0])
    kernel = next(event for event in running.stop().sink.events() if event.name == "kernel")
    assert (kernel.parent, kernel.root) == (launched[0], launched[0])


def test_what_was_taken_waits_for_a_drain_that_succeeds(
    recorder: Recorder, session: Session, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Running(session, Selected(sources=WITH_KERNELS))
    stream.kernel("kernel")
    with monkeypatch.context() as patch:
        patch.setattr(recorder, "drain", _without_memory)
        assert not session.flush(running.capture, PATIENCE_S)
    assert running.stop().names() == ["kernel"]


def _without_memory(**_: bool) -> Batch:
    raise MemoryError
