"""What never arrived is told by spans that did, on either way out, and adds up with the counters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, context, make_batch
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import make_event_id
from otel_recfn.model.tables import NO_CONTEXT, SpanContextRef, Track
from otel_recfn.sinks.background import BackgroundSink
from otel_recfn.sinks.lost_places import MOST_PLACES, NOWHERE, LostAt, Place, with_more
from otel_recfn.sinks.otlp.export import OtlpWayOut
from otel_recfn.sinks.otlp.outcome import Outcome, Verdict
from otel_recfn.sinks.spans.budgets import EVERY_RANGE, Volume
from otel_recfn.sinks.spans.sink import SpansSink
from patience import PATIENCE_S

FOLDING = Volume(20, 10, 200, 0)
Told = list[tuple[str, int]]


class Backend(SpanExporter):
    """Takes spans, or refuses them: an exporter, and a transport of requests."""

    where, encoding, concurrent = "here", "", 1

    def __init__(self) -> None:
        self.takes, self.told = True, list[tuple[str, int]]()
        """What the spans that it took said of losses."""
        self.rejects = 0
        """So many spans of a request that it takes."""
        self.arrived = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if not self.takes:
            return SpanExportResult.FAILURE
        self._take([(span.name, (span.attributes or {}).get("recfn.dropped")) for span in spans])
        return SpanExportResult.SUCCESS

    def _take(self, spans: list[tuple[str, Any]]) -> None:
        self.arrived += len(spans)
        self.told += [(name, told) for name, told in spans if told is not None]

    def __call__(self) -> Backend:
        return self

    def after_fork_in_child(self) -> Backend:
        return self

    def send(self, body: bytes) -> Outcome:
        if not self.takes:
            return Outcome(Verdict.REFUSED)
        of_request = ExportTraceServiceRequest.FromString(body).resource_spans
        spans = [span for each in of_request for scope in each.scope_spans for span in scope.spans]
        attributes = [{each.key: each.value.int_value for each in span.attributes} for span in spans]
        self._take([(span.name, found.get("recfn.dropped")) for span, found in zip(spans, attributes, strict=True)])
        return Outcome(Verdict.TAKEN, rejected=self.rejects)

    def close(self) -> None:
        pass


class Run:
    """A sink in front of a backend, which gets units of two ranges."""

    def __init__(
        self, way: str, volume: Volume = EVERY_RANGE, hook: Any = None, request_bytes: int = 1 << 16, queue_bytes: int = 1 << 20
    ) -> None:
        self.backend, self.recorder_lost, self._units = Backend(), 0, 0
        self.dropped_by_thread: dict[int, int] = {}
        provider = TracerProvider(shutdown_on_exit=False)
        beside = way == "requests"
        provider.add_span_processor(SimpleSpanProcessor(Backend() if beside else self.backend))
        out = OtlpWayOut(self.backend, request_bytes, queue_bytes) if beside else None
        lost = lambda: self.recorder_lost  # noqa: E731 - the count of a recorder
        self.sink = SpansSink(
            provider,
            None,
            hook=hook,
            volume=volume,
            way_out=out,
            recorder_lost=lost,
            dropped_by_thread=lambda: self.dropped_by_thread,
        )

    def unit(self) -> Any:
        """The batch of another unit."""
        self._units += 1
        start, outer = BASE_NS + self._units * 10**9, make_event_id(self._units, 2)
        common = {"context": context(self._units, 0xA), "root": outer}
        return make_batch(
            [
                {"event_id": make_event_id(self._units, 1), "parent": outer, "name": "inner", "start_ns": start + 1, **common,
                 "end_ns": start + 5},
                {"event_id": outer, "name": "outer", "start_ns": start, "end_ns": start + 9, **common},
            ]
        )  # fmt: skip

    def write(self, takes: bool) -> Told:
        """Another unit; returns what arrived of losses since the last."""
        before, self.backend.takes = len(self.backend.told), takes
        self.sink.write(self.unit())
        assert self.sink.flush(PATIENCE_S)
        return self.backend.told[before:]

    def write_ranges(self, *ranges: tuple[str, Track, SpanContextRef], takes: bool = True) -> Told:
        """Outermost ranges that ended one after the other; returns what arrived of losses since the last."""
        before, self.backend.takes = len(self.backend.told), takes
        self.sink.write(self.ranges(*ranges))
        assert self.sink.flush(PATIENCE_S)
        return self.backend.told[before:]

    def ranges(self, *ranges: tuple[str, Track, SpanContextRef]) -> Batch:
        """The batch of outermost ranges that ended one after the other."""
        self._units += 1
        rows = []
        for number, (name, track, ran_in) in enumerate(ranges, 1000 * self._units):
            start = BASE_NS + 10 * number
            ends = {"start_ns": start, "end_ns": start + 5}
            rows.append(
                {"event_id": make_event_id(track.number, number), "name": name, "thread": track, "context": ran_in, **ends}
            )
        return make_batch(rows)

    def close(self) -> dict[str, int]:
        self.sink.close(PATIENCE_S)
        return dict(self.sink.counters())


WAYS = pytest.mark.parametrize("way", ["processors", "requests"])


@WAYS
@pytest.mark.parametrize("volume", [EVERY_RANGE, FOLDING])
def test_the_next_span_that_arrives_tells_of_spans_that_did_not(way: str, volume: Volume) -> None:
    run = Run(way, volume)
    assert run.write(takes=True) == []
    assert run.write(takes=False) == []
    [(_, told)] = run.write(takes=True)
    assert told == 2
    assert run.write(takes=True) == []
    assert run.close()["spans_failed"] == 2


@WAYS
def test_what_a_lost_span_told_is_told_again(way: str) -> None:
    run = Run(way)
    for _ in range(3):
        run.write(takes=False)
    assert [told for _, told in run.write(takes=True)] == [6]
    assert run.close()["spans_failed"] == 6


@WAYS
@pytest.mark.parametrize("volume", [EVERY_RANGE, FOLDING])
def test_ranges_that_the_recorder_dropped(way: str, volume: Volume) -> None:
    run = Run(way, volume)
    run.write(takes=True)
    run.recorder_lost = 7
    assert [told for _, told in run.write(takes=True)] == [7]
    run.sink.set_dropped(lambda: 5, dict)
    assert [told for _, told in run.write(takes=True)] == [5]
    assert run.write(takes=True) == []
    run.close()


ONE, TWO, THREE = (context(number, 0xA) for number in (1, 2, 3))
SECOND_WORKER = WORKER_THREAD._replace(number=3, thread_id=3, native_id=1003, ident=140_003)


@WAYS
@pytest.mark.parametrize("volume", [EVERY_RANGE, FOLDING])
def test_what_a_thread_dropped_is_told_by_its_own_next_span(way: str, volume: Volume) -> None:
    run = Run(way, volume)
    run.recorder_lost, run.dropped_by_thread = 12, {WORKER_THREAD.number: 4, SECOND_WORKER.number: 5, 99: 2}
    ranges = [
        ("main", MAIN_THREAD, ONE),
        ("worker", WORKER_THREAD, TWO),
        ("again", WORKER_THREAD, TWO),
        ("second", SECOND_WORKER, THREE),
    ]
    found = dict(run.write_ranges(*ranges))
    assert (found["worker"], found["second"]) == (4, 5)
    assert sum(found.values()) == 12  # what nobody is near to, the next span tells
    assert "again" not in found
    run.recorder_lost, run.dropped_by_thread = 13, {**run.dropped_by_thread, WORKER_THREAD.number: 5}
    assert run.write_ranges(*ranges) == [("worker", 1)]
    assert run.write_ranges(*ranges) == []
    run.close()


@WAYS
@pytest.mark.parametrize("volume", [EVERY_RANGE, FOLDING])
def test_what_an_exporter_refused_is_told_in_its_trace_or_else_in_its_thread(way: str, volume: Volume) -> None:
    run = Run(way, volume)
    refused = [("a", MAIN_THREAD, ONE), ("b", SECOND_WORKER, TWO), ("c", SECOND_WORKER, TWO)]
    assert run.write_ranges(*refused, takes=False) == []
    arriving = [("x", WORKER_THREAD, THREE), ("of thread", SECOND_WORKER, THREE), ("of trace", WORKER_THREAD, ONE)]
    assert dict(run.write_ranges(*arriving)) == {"of thread": 2, "of trace": 1}
    assert run.write_ranges(*arriving) == []
    run.close()


ELSEWHERE = ("elsewhere", WORKER_THREAD, THREE)


@WAYS
def test_what_a_lost_span_told_is_told_again_where_that_span_was(way: str) -> None:
    run = Run(way)
    run.write_ranges(("lost", MAIN_THREAD, ONE), takes=False)
    run.write_ranges(("lost too", SECOND_WORKER, TWO), takes=False)  # which told of the first one
    assert run.write_ranges(ELSEWHERE, ("near", MAIN_THREAD, TWO)) == [("near", 2)]
    run.close()


def test_what_a_server_rejects_of_a_request_is_told_where_most_of_its_spans_were() -> None:
    run = Run("requests")
    run.backend.rejects = 2
    run.write_ranges(*[("many", MAIN_THREAD, ONE)] * 3, ("few", SECOND_WORKER, TWO))
    run.backend.rejects = 0
    assert run.write_ranges(ELSEWHERE, ("few", SECOND_WORKER, TWO), ("many", MAIN_THREAD, ONE)) == [("many", 2)]
    run.close()


def test_requests_that_the_queue_had_no_room_for() -> None:
    run = Run("requests", request_bytes=300, queue_bytes=1)
    run.write_ranges(("lost", MAIN_THREAD, ONE), ("lost", SECOND_WORKER, TWO))  # each in a request of its own
    lost = run.sink.counters()["spans_crowded_out"]
    assert lost == 2
    run.sink._delivery._queue._most_bytes = 1 << 20
    arriving = [ELSEWHERE, ("of thread", SECOND_WORKER, THREE), ("of trace", WORKER_THREAD, ONE)]
    assert dict(run.write_ranges(*arriving)) == {"of thread": 1, "of trace": 1}
    run.close()


@WAYS
@pytest.mark.parametrize("volume", [EVERY_RANGE, FOLDING])
def test_what_the_queue_dropped_is_told_in_its_trace_or_else_in_its_thread(way: str, volume: Volume) -> None:
    run = Run(way, volume)
    background = BackgroundSink(run.sink, max_rows=3, start=False)
    lost = [("a", MAIN_THREAD, ONE), ("b", SECOND_WORKER, TWO), ("c", SECOND_WORKER, TWO), ("d", SECOND_WORKER, NO_CONTEXT)]
    arriving = [ELSEWHERE, ("of thread", SECOND_WORKER, THREE), ("of trace", WORKER_THREAD, ONE)]
    for ranges in (arriving, lost):  # the first batch fits in any case
        background._queue.put_batch(run.ranges(*ranges))
    assert background.counters()["queue_dropped"] == 4
    background.start()
    background.close(PATIENCE_S)
    assert dict(run.backend.told) == {"of thread": 3, "of trace": 1}


def test_of_many_places_the_last_ones_are_known() -> None:
    lost_at: LostAt = NOWHERE
    for number in range(2, 3 * MOST_PLACES):
        lost_at = with_more(lost_at, {Place(number): 1, Place(1): 1})
    assert len(lost_at) == MOST_PLACES
    assert lost_at[Place(1)] == 3 * MOST_PLACES - 2
    assert Place(3 * MOST_PLACES - 1) in lost_at


def test_what_the_recorder_lost_before_is_not_this_sinks() -> None:
    sink = SpansSink(TracerProvider(shutdown_on_exit=False), recorder_lost=lambda: 9)
    assert sink._way.losses.due(0) == 0


def test_batches_that_the_queue_dropped() -> None:
    run = Run("processors")
    background = BackgroundSink(run.sink, max_rows=2, start=False)
    background._queue.put_batch(run.unit())
    background._queue.put_batch(run.unit())
    dropped = background.counters()["queue_dropped"]
    assert dropped > 0
    background.start()
    background.close(PATIENCE_S)
    assert sum(told for _, told in run.backend.told) == dropped


@WAYS
def test_a_hook_does_not_drop_the_span_that_tells(way: str) -> None:
    run = Run(way, hook=lambda row, attributes: False)
    run.recorder_lost = 3
    assert [told for _, told in run.write(takes=True)] == [3]
    run.close()


@given(way=st.sampled_from(["processors", "requests"]), takes=st.lists(st.tuples(st.booleans(), st.integers(0, 2)), max_size=9))
def test_what_arrived_tells_of_all_that_was_lost_before(way: str, takes: list[tuple[bool, int]]) -> None:
    run = Run(way)
    for taken, lost in takes:
        run.recorder_lost += lost
        run.write(taken)
    run.write(takes=True)
    counters = run.close()
    assert counters["spans"] == run.backend.arrived + counters["spans_failed"]
    assert sum(told for _, told in run.backend.told) == counters["spans_failed"] + run.recorder_lost
