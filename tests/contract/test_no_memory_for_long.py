"""Memory is missing for long: what is recorded waits in the recorder, and no span comes without its parent afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from recording_helpers import Worker

from otel_recfn._native import LIMITS
from otel_recfn.batches.gaps import Gaps
from otel_recfn.batches.selection import Selected
from otel_recfn.model.events import EventFlag, EventSource
from otel_recfn.model.scope import RecordScope
from otel_recfn.recording.recorder import Recorder
from otel_recfn.session import Session, drain_thread
from otel_recfn.session.capture import Capture
from otel_recfn.sinks import waiting_batches
from otel_recfn.sinks.background import BackgroundSink
from otel_recfn.sinks.in_memory import InMemorySink
from otel_recfn.sinks.spans import batch_writing
from otel_recfn.sinks.spans.sink import SpansSink
from patience import PATIENCE_S

pytestmark = pytest.mark.one_python

ALWAYS_TAKEN = 8
DRAINS = 20 * ALWAYS_TAKEN
LONG_SHAPES = f"[{[1] * 5_400}]"
assert len(LONG_SHAPES) < LIMITS["MAX_SHAPES_BYTES"]
"""So that few ranges fill a buffer: each would become a span and an event."""


class Shortage:
    """Memory that is missing while it is on."""

    def __init__(self) -> None:
        self.on = False

    def check(self) -> None:
        if self.on:
            raise MemoryError


class Program:
    """Ranges, in a capture with spans."""

    def __init__(self, recorder: Recorder, session: Session) -> None:
        self.recorder, self.session = recorder, session
        self.exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.spans = BackgroundSink(SpansSink(provider, None), max_share=1.0)
        self.other = InMemorySink()
        self.capture = Capture(Selected(), [self.spans, self.other], buffer_bytes=1 << 20)
        session.start(self.capture)

    def begin(self, name: str, flags: int = 0, shapes: str = "") -> int:
        return self.recorder.begin(name, RecordScope.USER_SCOPE, EventSource.RECORD_FUNCTION, flags=flags, shapes=shapes)

    def leaves(self, count: int, shapes: str = "") -> None:
        for _ in range(count):
            self.recorder.end(self.begin("leaf", shapes=shapes))

    def drain(self) -> None:
        self.session.flush(self.capture, 0.0)

    def orphans(self) -> list[str]:
        spans = self.exporter.get_finished_spans()
        there = {span.context.span_id for span in spans}
        assert len(there) == len(spans), "a span was sent twice"
        return [span.name for span in spans if span.parent is not None and span.parent.span_id not in there]


@pytest.fixture
def shortage(monkeypatch: pytest.MonkeyPatch) -> Shortage:
    monkeypatch.setattr(waiting_batches, "ALWAYS_TAKEN", ALWAYS_TAKEN)
    monkeypatch.setattr(waiting_batches, "MAX_ROWS", 0)
    monkeypatch.setattr(drain_thread, "DRAIN_SECONDS", 1000.0)
    return Shortage()


@pytest.fixture(params=["queue", "spans", "both"])
def missing(request: pytest.FixtureRequest, shortage: Shortage, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where memory is missing."""
    note, fates_of = Gaps.note, batch_writing.fates_of

    def noted(self: Gaps, batch: object) -> None:
        shortage.check()
        note(self, batch)  # type: ignore[arg-type]

    def fates(*arguments: object) -> object:
        shortage.check()
        return fates_of(*arguments)  # type: ignore[arg-type]

    if request.param != "spans":
        monkeypatch.setattr(Gaps, "note", noted)
    if request.param != "queue":
        monkeypatch.setattr(batch_writing, "fates_of", fates)
    return str(request.param)


@pytest.fixture
def program(recorder: Recorder, shortage: Shortage) -> Iterator[Program]:
    session = Session(recorder, [])
    yield Program(recorder, session)
    shortage.on = False
    session.at_exit()


@pytest.mark.usefixtures("missing")
@pytest.mark.parametrize("others", [False, True])
def test_no_parent_is_lost_for_which_there_was_no_memory(program: Program, shortage: Shortage, others: bool) -> None:
    outer, task = program.begin("outer"), program.begin("task", int(EventFlag.ASYNC))
    program.leaves(3)
    assert program.session.flush(program.capture, PATIENCE_S)
    shortage.on = True
    for number in range(DRAINS):
        program.leaves(3)
        if number == DRAINS // 2:
            program.recorder.end(task)
        if others and number % 20 == 0:
            beside = Capture(Selected(), [InMemorySink()], buffer_bytes=1 << 20)
            program.session.start(beside)
            program.leaves(1)
            program.session.stop(beside, PATIENCE_S)
            assert beside.counters()["in_memory.rows"] == 1
        program.drain()
    program.recorder.end(outer)
    program.leaves(2)
    program.drain()
    shortage.on = False
    program.session.stop(program.capture, PATIENCE_S)
    assert program.orphans() == []
    counters = program.session.counters(program.capture)
    assert counters["spans.queue_dropped"] == 0
    assert "spans.missed" not in counters
    assert counters["rows"] == counters["in_memory.rows"] == len(program.other.events())


@pytest.mark.usefixtures("missing")
def test_what_the_recorder_has_no_room_for_is_dropped_and_the_ends_of_what_is_open_come(
    program: Program, shortage: Shortage, workers: list[Worker]
) -> None:
    worker = workers[0]  # this thread may have a larger buffer, of an earlier test
    outer = worker.call(program.begin, "outer")
    worker.call(program.leaves, 3)
    assert program.session.flush(program.capture, PATIENCE_S)
    shortage.on = True
    for _ in range(2 * ALWAYS_TAKEN):
        worker.call(program.leaves, 1)
        program.drain()
    dropped = program.recorder.counters().dropped
    while program.recorder.counters().dropped == dropped:  # its buffer may be one that grew for a thread of an earlier test
        worker.call(program.leaves, 64, LONG_SHAPES)
    worker.call(program.recorder.end, outer)
    program.drain()
    shortage.on = False
    program.session.stop(program.capture, PATIENCE_S)
    assert program.orphans() == []
    counters = program.session.counters(program.capture)
    assert counters["recorder.dropped"] > 0
    assert [event.name for event in program.other.events()].count("outer") == 1
