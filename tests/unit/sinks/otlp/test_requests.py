"""Requests: what is in them, how they are cut, how long they wait, and which go where there is no room."""

from __future__ import annotations

from datetime import datetime, timezone
from email.utils import format_datetime
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from otlp_plans import plan_of, target

from batches import context
from otel_recfn import _native
from otel_recfn.sinks.otlp.answers import MOST_DELAY_S, PartialSuccess, partial_success, retry_after_s, retry_info_s
from otel_recfn.sinks.otlp.backoff import FIRST_S, JITTER, LONGEST_S, Backoff
from otel_recfn.sinks.otlp.encoded import encoded
from otel_recfn.sinks.otlp.envelope import Envelope, Request, RequestBuilder
from otel_recfn.sinks.otlp.launch import with_launch
from otel_recfn.sinks.otlp.outcome import Outcome, Verdict
from otel_recfn.sinks.otlp.request_queue import RequestQueue
from otel_recfn.sinks.otlp.senders import Senders
from otel_recfn.sinks.spans.mapping import SpanMapper
from patience import PATIENCE_S
from thoroughness import examples

pytestmark = pytest.mark.one_python


def test_a_request_is_what_the_official_encoder_makes() -> None:
    where = target()
    spans = SpanMapper(where).spans(plan_of([{"name": "a", "context": context(1, 2)}, {"name": "b", "context": context(1, 2)}]))
    builder = RequestBuilder(Envelope(where.resource, where.scope), 1 << 20)
    builder.add(encoded(spans))
    assert ExportTraceServiceRequest.FromString(builder.request().body) == encode_spans(spans)


@examples(40)
@given(st.lists(st.lists(st.integers(0, 3000), min_size=1, max_size=5), max_size=6), st.integers(1024, 8192))
def test_requests_are_bounded_and_cut_no_span(batches: list[list[int]], most: int) -> None:
    where = target()
    mapper, builder = SpanMapper(where), RequestBuilder(Envelope(where.resource, where.scope), most)
    requests: list[Request] = []
    names = [[f"{number}.{place} " + "x" * size for place, size in enumerate(sizes)] for number, sizes in enumerate(batches)]
    for of_batch in names:
        rest = encoded(mapper.spans(plan_of([{"name": name, "context": context(1, 2)} for name in of_batch])))
        while len(rest):
            fitting, rest = builder.fitting(rest)
            builder.add(fitting)
            if len(rest):
                requests.append(builder.request())
                builder = builder.next()
    requests += [builder.request()] if builder.spans else []
    arrived = []
    for request in requests:
        read = ExportTraceServiceRequest.FromString(request.body)
        found = [span.name for each in read.resource_spans for scope in each.scope_spans for span in scope.spans]
        assert len(found) == request.spans
        assert len(request.body) <= most or request.spans == 1
        arrived += found
    assert arrived == [name for of_batch in names for name in of_batch]


@given(st.lists(st.binary(max_size=9)))
def test_bytes_are_joined_as_python_joins_them(parts: list[bytes]) -> None:
    assert _native.join_bytes([memoryview(part) for part in parts]) == b"".join(parts)


def test_parts_without_bytes_are_refused() -> None:
    for parts in ([b"a", 1], [b"a", None, b"b"]):
        with pytest.raises(TypeError):
            _native.join_bytes(parts)  # type: ignore[arg-type]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_after_a_failure_all_requests_wait_for_as_long_as_the_server_says() -> None:
    clock = Clock()
    queue = RequestQueue(1 << 20, Backoff(chance=lambda: 0.0), clock)
    first, second = Request(b"1", 1), Request(b"2", 1)
    queue.put(first)
    queue.put(second)
    assert queue.take() is first
    queue.settle(first, Outcome(Verdict.AGAIN, delay_s=7.0))
    assert queue._pause() == 7.0
    clock.now += 7.0
    assert (queue.take(), queue.take()) == (first, second)


def test_who_waits_for_a_flush_shortens_our_pause_and_not_the_one_that_the_server_asked_for() -> None:
    clock = Clock()
    queue = RequestQueue(1 << 20, Backoff(chance=lambda: 0.0), clock)
    request = Request(b"1", 1)
    queue.put(request)
    assert queue.take() is request
    queue.settle(request, Outcome(Verdict.AGAIN))
    assert queue._pause() > 0
    queue.ask_now()
    assert queue.take() is request
    queue.settle(request, Outcome(Verdict.AGAIN, delay_s=7.0))
    queue.ask_now()
    assert queue._pause() == 7.0


def test_after_a_flush_has_asked_pauses_are_short_again_and_the_server_still_counts_as_failing() -> None:
    clock = Clock()
    queue = RequestQueue(1 << 20, Backoff(chance=lambda: 0.5), clock)
    request = Request(b"1", 1)
    queue.put(request)
    for _ in range(9):
        assert queue.take() is request
        queue.settle(request, Outcome(Verdict.AGAIN))
        clock.now += LONGEST_S
    queue.ask_now()
    assert queue.take() is request
    queue.settle(request, Outcome(Verdict.AGAIN))
    assert queue._pause() == FIRST_S
    assert queue.failures == 10


def test_a_request_that_is_being_sent_stays_where_there_is_no_room() -> None:
    queue = RequestQueue(4)
    requests = [Request(b"abc", number) for number in range(1, 4)]
    queue.put(requests[0])
    sent = queue.take()
    assert sent is not None
    for request in requests[1:]:
        queue.put(request)
    assert queue.counts.crowded_out == 5
    queue.settle(sent, Outcome(Verdict.TAKEN))
    assert (queue.counts.crowded_out, queue.counts.exported, queue.bytes, queue.spans) == (5, 1, 0, 0)


@given(st.randoms(use_true_random=False), st.sampled_from([1, 20, 1000]))
def test_every_span_is_counted_once_whatever_becomes_of_its_request(chosen: Random, most_bytes: int) -> None:
    queue = RequestQueue(most_bytes, Backoff(chance=lambda: 0.0), lambda: 1e9)
    sending: list[Request] = []
    spans = 0
    for _ in range(100):
        if chosen.randrange(2):
            request = Request(b"x" * chosen.randrange(1, 10), chosen.randrange(1, 10))
            spans += request.spans
            queue.put(request)
        elif queue._waiting:
            queue.ask_now()
            sending += filter(None, [queue.take()])
        elif sending:
            request = sending.pop(chosen.randrange(len(sending)))
            rejected = chosen.choice((0, 1, request.spans))
            queue.settle(request, Outcome(chosen.choice(list(Verdict)), rejected=rejected))
        counts = queue.counts
        assert counts.exported + counts.lost + queue.spans == spans
        assert queue.bytes <= most_bytes + sum(each.size for each in sending)


class Raises:
    """Takes requests when it has raised all of its errors."""

    where, encoding, concurrent = "here", "", 1
    hidden: tuple[str, ...] = ()

    def __init__(self, *errors: BaseException) -> None:
        self._errors = list(errors)

    def send(self, body: bytes) -> Outcome:
        if self._errors:
            raise self._errors.pop()
        return Outcome(Verdict.TAKEN)

    def close(self) -> None:
        """Nothing is open."""


def test_a_request_with_which_something_raises_is_counted_and_the_next_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    queue, transport = RequestQueue(1 << 20), Raises(MemoryError(), SystemExit(), ValueError("secret"))
    senders = Senders(queue, transport)
    for _ in range(5):
        queue.put(Request(b"1", 1))
    senders.start()
    assert queue.wait_until_empty(PATIENCE_S)
    queue.end()
    senders.wait_for_end(PATIENCE_S)
    assert (queue.counts.refused, queue.counts.exported) == (3, 2)
    assert len([record for record in caplog.records if "sending raised" in record.getMessage()]) == 1


def test_pauses_grow_up_to_a_bound_and_are_by_chance() -> None:
    for chance in (0.0, 0.5, 1.0):
        backoff = Backoff(chance=lambda chance=chance: chance)
        pauses = [backoff.delay_s(None) for _ in range(100)]
        around = 1 - JITTER + 2 * JITTER * chance
        assert pauses[0] == pytest.approx(FIRST_S * around)
        assert pauses[-1] == pytest.approx(LONGEST_S * around)
        assert pauses == sorted(pauses)
        backoff.reset()
        assert backoff.delay_s(None) == pauses[0]
        assert 3.0 <= backoff.delay_s(3.0) <= 3.4


NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("0", 0.0),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("99999999", MOST_DELAY_S),
        ("-5", None),
        ("soon", None),
        ("", None),
        (format_datetime(NOW.replace(minute=1), usegmt=True), 60.0),
        (format_datetime(NOW.replace(year=2020), usegmt=True), 0.0),
        ("Thu, 01 Jan 2026 00:00:09 -0000", 9.0),
    ],
)
def test_retry_after(header: str | None, seconds: float | None) -> None:
    assert retry_after_s(header, NOW.timestamp) == seconds


@given(st.binary(max_size=40))
def test_answers_that_are_no_messages_say_nothing_and_break_nothing(answer: bytes) -> None:
    assert isinstance(partial_success(answer), PartialSuccess)
    assert isinstance(retry_info_s(answer), (float, type(None)))


@pytest.mark.parametrize(
    ("environment", "attributes"),
    [
        ({}, {}),
        (
            {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none"},
            {"recfn.rank": 3, "recfn.local_rank": 1, "recfn.world_size": 4},
        ),
        (
            {"SLURM_PROCID": "5", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "77", "TORCHELASTIC_RUN_ID": "r"},
            {"recfn.rank": 5, "recfn.local_rank": 0, "recfn.world_size": 8, "recfn.job_id": "77"},
        ),
        ({"RANK": "x", "WORLD_SIZE": "-1"}, {}),
    ],
)
def test_what_a_launcher_says_is_on_our_resource(environment: dict[str, str], attributes: dict[str, object]) -> None:
    plain, own = Resource({"service.name": "s"}, "https://schema"), Resource({"recfn.rank": 9})
    made = with_launch(plain, environment)
    assert (dict(made.attributes), made.schema_url) == ({"service.name": "s", **attributes}, "https://schema")
    assert with_launch(own, environment).attributes["recfn.rank"] == 9
    assert dict(plain.attributes) == {"service.name": "s"}
