"""Requests: what is in them, encoded as the official encoder does, how they are cut, how long
they wait, and which go.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits
from otlp_plans import plan_of, plans, target

from helpers.batches import context
from helpers.example_counts import examples
from helpers.timeouts import PATIENCE_S, wait_until
from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.sinks.otlp import delivery
from otel_recfn.sinks.otlp.delivery import RequestSender
from otel_recfn.sinks.otlp.encoding import (
    EncodedSpans,
    OtlpMapper,
    Request,
    RequestBuilder,
    as_encoded,
    with_launch,
)
from otel_recfn.sinks.otlp.transports import MAX_DELAY_S, Outcome, Verdict, retry_after_s
from otel_recfn.sinks.spans.mapping import SpanMapper
from otel_recfn.sinks.task_queue import Flush, TaskQueue

pytestmark = pytest.mark.one_python


def test_a_request_is_what_the_official_encoder_makes() -> None:
    where = target()
    spans = SpanMapper(where).spans(
        plan_of([{"name": "a", "context": context(1, 2)}, {"name": "b", "context": context(1, 2)}])
    )
    builder = RequestBuilder(where.resource, where.scope, 1 << 20)
    builder.add(as_encoded(spans))
    assert ExportTraceServiceRequest.FromString(builder.take().body) == encode_spans(spans)


@examples(40)
@given(
    st.lists(st.lists(st.integers(0, 3000), min_size=1, max_size=5), max_size=6),
    st.integers(1024, 8192),
)
def test_requests_are_bounded_and_cut_no_span(batches: list[list[int]], most: int) -> None:
    where = target()
    mapper = SpanMapper(where)
    builder = RequestBuilder(where.resource, where.scope, most)
    requests: list[Request] = []
    names = [
        [f"{number}.{place} " + "x" * size for place, size in enumerate(sizes)]
        for number, sizes in enumerate(batches)
    ]
    for batch in names:
        rest = as_encoded(
            mapper.spans(plan_of([{"name": name, "context": context(1, 2)} for name in batch]))
        )
        while len(rest := builder.add(rest)):
            requests.append(builder.take())
    requests += [builder.take()] if builder.spans else []
    arrived = []
    for request in requests:
        read = ExportTraceServiceRequest.FromString(request.body)
        found = [
            span.name
            for each in read.resource_spans
            for scope in each.scope_spans
            for span in scope.spans
        ]
        assert len(found) == request.spans
        assert len(request.body) <= most or request.spans == 1
        arrived += found
    assert arrived == [name for batch in names for name in batch]


def test_a_request_that_is_being_sent_stays_where_there_is_no_room() -> None:
    transport = Held()
    sender = RequestSender(transport, 8)
    for spans in (1, 2):
        sender.put(Request(b"abc", spans))
        assert transport.arrived.acquire(timeout=PATIENCE_S)
    for spans in (3, 4):
        sender.put(Request(b"abc", spans))
    assert sender.queue_full == 7
    assert not sender.flush(0.1)
    transport.let_go.set()
    assert sender.flush(PATIENCE_S)
    assert (sender.queue_full, sender.exported) == (7, 3)
    assert_has_room(sender, 8)
    sender.end(PATIENCE_S)


def assert_has_room(sender: RequestSender, nbytes: int) -> None:
    """All that was put is out: nothing has to go for what needs all of the room."""
    assert sender.queue.put(Request(b"x" * nbytes, 1)) == []


@given(
    st.lists(
        st.tuples(
            st.integers(1, 9), st.integers(1, 9), st.sampled_from(Verdict), st.integers(0, 20)
        ),
        max_size=20,
    )
)
def test_every_span_is_counted_once_whatever_becomes_of_its_request(
    requests: list[tuple[int, int, Verdict, int]],
) -> None:
    """Twenty bytes have room; what is to be sent again is so once, without a pause that the test
    would wait for.
    """
    sender = RequestSender(
        Scripted([Outcome(verdict, "", rejected, 0.0) for _, _, verdict, rejected in requests]), 20
    )
    for size, spans, _, _ in requests:
        sender.put(Request(b"x" * size, spans))
    assert sender.flush(PATIENCE_S)
    assert sender.exported + sender.failed + sender.queue_full == sum(
        spans for _, spans, _, _ in requests
    )
    assert_has_room(sender, 20)
    sender.end(PATIENCE_S)


class Scripted:
    """Says these things, and then that requests are taken."""

    where, encoding = "here", ""
    hidden: tuple[str, ...] = ()

    def __init__(self, outcomes: Sequence[Outcome | BaseException] = ()) -> None:
        self._outcomes = list(outcomes)
        self._lock = threading.Lock()
        self.sent = 0

    def send(self, body: bytes) -> Outcome:
        with self._lock:
            self.sent += 1
            outcome = self._outcomes.pop(0) if self._outcomes else Outcome(Verdict.TAKEN)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def close(self) -> None:
        """Nothing is open."""

    def in_child(self) -> Scripted:
        return self


class Held(Scripted):
    """Takes requests when it is let go."""

    def __init__(self, outcomes: Sequence[Outcome | BaseException] = ()) -> None:
        super().__init__(outcomes)
        self.arrived = threading.Semaphore(0)
        self.let_go = threading.Event()

    def send(self, body: bytes) -> Outcome:
        self.arrived.release()
        self.let_go.wait()
        return super().send(body)


def test_a_request_with_which_something_raises_is_counted_and_the_next_is_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sender = RequestSender(Scripted([MemoryError(), SystemExit(), ValueError("secret")]), 1 << 20)
    for _ in range(5):
        sender.put(Request(b"1", 1))
    assert sender.flush(PATIENCE_S)
    sender.end(PATIENCE_S)
    assert (sender.failed, sender.exported) == (3, 2)
    assert (
        len([record for record in caplog.records if "sending raised" in record.getMessage()]) == 1
    )


def test_a_flush_shortens_our_pause_and_none_that_the_server_asks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery, "FIRST_PAUSE_S", 2 * PATIENCE_S)
    ours = RequestSender(Scripted([Outcome(Verdict.AGAIN)] * 2), 1 << 20)
    ours.put(Request(b"1", 1))
    wait_until(lambda: ours.failures == 1)
    assert not ours.flush(0.1)
    wait_until(lambda: ours.failures == 2)  # the flush forgets none
    assert ours.flush(PATIENCE_S)
    theirs = RequestSender(Scripted([Outcome(Verdict.AGAIN, delay_s=2 * PATIENCE_S)]), 1 << 20)
    theirs.put(Request(b"1", 1))
    wait_until(lambda: theirs.failures == 1)
    assert not theirs.flush(0.1)
    for each in (ours, theirs):
        each.end(PATIENCE_S)
    # No pause holds up the end.
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("otel-recfn otlp")]


def test_a_server_has_failed_after_two_failures_and_not_once_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery, "FIRST_PAUSE_S", 0.0)
    again = Outcome(Verdict.AGAIN)
    never = Outcome(Verdict.AGAIN, delay_s=2 * PATIENCE_S)
    assert_failed_after([never], False)
    assert_failed_after([again, never], True)
    assert_failed_after([again, again, Outcome(Verdict.REFUSED)], False)


def assert_failed_after(outcomes: list[Outcome], failed: bool) -> None:
    transport = Scripted(outcomes)
    sender = RequestSender(transport, 1 << 20)
    sender.put(Request(b"1", 1))
    wait_until(lambda: transport.sent == len(outcomes))
    wait_until(lambda: (sender.failures >= delivery.FAILURES) is failed)
    sender.end(PATIENCE_S)


def test_flushes_that_nobody_waits_for_do_not_pile_up() -> None:
    queue = TaskQueue[int](10, weigh=lambda task: task)
    queue.put(1)
    flushes = [queue.put_flush(0.0) for _ in range(1000)]
    queue.put(2)
    for flush in flushes:
        assert isinstance(flush, Flush)
        assert not queue.wait_for(flush)
    # Nor are they there to be done, between the tasks.
    assert [queue.next(), queue.next(), queue.next(0.0)] == [1, 2, None]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("0", 0.0),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("99999999", MAX_DELAY_S),
        ("-5", None),
        ("soon", None),
        ("", None),
        ("Thu, 01 Jan 2026 00:00:09 GMT", None),
    ],
)
def test_retry_after(header: str | None, seconds: float | None) -> None:
    assert retry_after_s(header) == seconds


@pytest.mark.parametrize(
    ("environment", "attributes"),
    [
        ({}, {}),
        (
            {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"},
            {"recfn.rank": 3, "recfn.local_rank": 1, "recfn.world_size": 4},
        ),
        (
            {"SLURM_PROCID": "5", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8"},
            {"recfn.rank": 5, "recfn.local_rank": 0, "recfn.world_size": 8},
        ),
        ({"RANK": "x", "WORLD_SIZE": "-1"}, {}),
    ],
)
def test_what_a_launcher_says_is_on_our_resource(
    environment: dict[str, str], attributes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    plain = Resource({"service.name": "s"}, "https://schema")
    own = Resource({"recfn.rank": 9})
    made = with_launch(plain)
    assert (dict(made.attributes), made.schema_url) == (
        {"service.name": "s", **attributes},
        "https://schema",
    )
    assert with_launch(own).attributes["recfn.rank"] == 9
    assert dict(plain.attributes) == {"service.name": "s"}


Told = Mapping[int, Mapping[str, Any]]
LIMITS = [
    None,
    SpanLimits(max_span_attributes=3),
    SpanLimits(max_attribute_length=5),
    SpanLimits(max_events=0, max_links=0),
]


def official(spans: list[ReadableSpan]) -> list[Span]:
    return [
        span
        for resource in encode_spans(spans).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def read(spans: EncodedSpans) -> list[Span]:
    whole = list(ScopeSpans.FromString(bytes(spans.data)).spans)
    ends = spans.ends.tolist()
    single = [
        ScopeSpans.FromString(bytes(spans.data[begin:end])).spans
        for begin, end in zip([0, *ends], ends, strict=False)
    ]
    assert [list(each) for each in single] == [[span] for span in whole]
    return whole


@examples(60)
@given(plans(), st.sampled_from(LIMITS))
def test_rows_become_the_spans_that_the_official_encoder_writes(
    plan: tuple[SpanPlan, Told], limits: SpanLimits | None
) -> None:
    where = target(limits)
    ours = OtlpMapper(where).spans(*plan)
    objects = SpanMapper(where).spans(*plan)
    assert read(ours) == official(objects)
    other = as_encoded(objects)
    assert (ours.data, ours.ends.tolist()) == (other.data, other.ends.tolist())
