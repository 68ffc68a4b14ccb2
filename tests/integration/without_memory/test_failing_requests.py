"""Every single allocation fails once between spans and their server: each span arrives once, or is counted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.one_python

BEGIN = """
from itertools import accumulate

import numpy as np
from failing_allocations import each_failure
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from otel_recfn.sinks.otlp import senders
from otel_recfn.sinks.otlp.backoff import Backoff
from otel_recfn.sinks.otlp.delivery import OtlpDelivery
from otel_recfn.sinks.otlp.encoded import EncodedSpans
from otel_recfn.sinks.otlp.envelope import Envelope, Request, RequestBuilder
from otel_recfn.sinks.otlp.kin import kin_in, read_kin
from otel_recfn.sinks.otlp.outcome import Outcome, Verdict
from otel_recfn.sinks.otlp.request_queue import RequestQueue
from otel_recfn.sinks.otlp.wire import field, fields
from otel_recfn.sinks.spans.provider import ProviderResolver
from otel_recfn.sinks.spans.turn import Turn

senders.PAUSE_WITHOUT_MEMORY_S = 0.0


TAKEN, AGAIN = Outcome(Verdict.TAKEN), Outcome(Verdict.AGAIN, delay_s=0.0)


class Keeps:
    where, encoding, concurrent = "here", "", 2

    def __init__(self):
        self.bodies, self.again, self.ends = [], False, None

    def send(self, body):
        self.again = not self.again
        if self.again:
            return AGAIN
        self.bodies.append(body)
        if self.ends is not None:
            self.ends._ended = True  # without a call, which may find no memory after the request has gone
        return TAKEN

    def close(self):
        pass


keeps = Keeps()
"""

HAND = (
    BEGIN
    + """
def arrived():
    names = []
    for body in keeps.bodies:
        (resource,) = [content for number, _, content in fields(body) if number == 1]
        (scope,) = [content for number, _, content in fields(resource) if number == 2]
        names += [content for number, _, content in fields(scope) if number == 2]
    return names


def spans():
    global made
    made += 7
    parts = [field(2, b"%08d" % number + bytes(200)) for number in range(made - 7, made)]
    kin = kin_in([1], np.zeros(7, np.int64), np.arange(made - 7, made, dtype=np.uint64), np.arange(7, dtype=np.uint64))
    return EncodedSpans(b"".join(parts), np.array(list(accumulate([len(part) for part in parts])), np.int64), kin=kin)


def write():
    delivery.handed = delivery.with_more(more)
    delivery.hand()


made = failed = 0
delivery = OtlpDelivery(Turn(), lambda: keeps, request_bytes=900, queue_bytes=1 << 20)
delivery.use(ProviderResolver(TracerProvider(shutdown_on_exit=False, resource=Resource({}))).resolve())
more, expected = spans(), []
for raised in each_failure(write):
    assert raised is None or isinstance(raised, (MemoryError, SystemError)), repr(raised)
    failed += raised is not None
    if delivery.handed.spans > len(expected):
        expected += range(made - 7, made)
    more = spans()
    for fail in (0, 1):
        try:
            delivery.hand()
        except MemoryError:
            pass
expected += range(made - 7, made)  # the last one, in which nothing failed
assert failed > 20, failed
assert delivery.flush(60)
assert sorted([int(name[:8]) for name in arrived()]) == expected
counters = delivery.counters()
assert (counters["spans"], counters["spans_exported"], counters["spans_failed"]) == (len(expected), len(expected), 0), counters
delivery.remove()
"""
)

SEND = (
    BEGIN
    + """
def fresh():
    global queue, sending, request
    queue = RequestQueue(100, Backoff(first_s=0.0))
    sending = senders.Senders(queue, keeps)
    keeps.bodies, keeps.again, keeps.ends = [], False, queue
    request = Request(b"x" * 60, 1)


def through():
    queue.put(request)
    sending._run()


fresh()
failed = 0
for raised in each_failure(through):
    assert raised is None or isinstance(raised, (MemoryError, SystemError)), repr(raised)
    failed += 1
    if queue.spans:  # the thread found no memory to begin
        sending._run()
    put = bool(keeps.bodies)
    assert len(keeps.bodies) == put  # never twice
    assert (queue.counts.exported, queue.counts.refused, queue.bytes) == (put, 0, 0), (raised, queue.counts)
    assert put or raised is not None
    fresh()
assert failed > 40, failed
crowded = 0
requests = [Request(b"x" * 60, 1) for _ in range(3)]


def put_all():
    for each in requests:
        queue.put(each)


for raised in each_failure(put_all):
    waiting = len(queue._waiting)
    assert (queue.bytes, queue.spans) == (60 * waiting, waiting), (queue.bytes, waiting)
    crowded += queue.counts.crowded_out
    fresh()
assert crowded
"""
)


CROWD = (
    BEGIN
    + """
target = ProviderResolver(TracerProvider(shutdown_on_exit=False, resource=Resource({}))).resolve()
envelope = Envelope(target.resource, target.scope)


def request_of(*spans):
    ids = [(field(2, own.to_bytes(8, "big")), field(4, above.to_bytes(8, "big"))) for own, above in spans]
    data = [field(2, field(1, bytes(16)) + own + above + field(5, bytes(99))) for own, above in ids]
    ends = np.array(list(accumulate([len(each) for each in data])), np.int64)
    builder = RequestBuilder(envelope, 1 << 20)
    builder.add(EncodedSpans(b"".join(data), ends, kin=read_kin(b"".join(data), ends).kin))
    return builder.request()


children = request_of(*[(100 + number, number) for number in range(1, 9, 2)])
requests = [request_of(*[(number, 50 + number) for number in (first, first + 1, first + 2)]) for first in (1, 4, 7, 50, 53, 56)]
queue = None


def fresh():
    global queue
    queue = RequestQueue(700, Backoff(first_s=0.0))
    queue._family.sent(children)


def crowd_out():
    for each in requests:
        queue.put(each)
    queue.keep_needed()
    taken.append(queue.take())


fresh()
failed, taken = 0, []
for raised in each_failure(crowd_out):
    assert raised is None or isinstance(raised, (MemoryError, SystemError)), repr(raised)
    failed += raised is not None
    in_it = [*queue._waiting, *queue._sending]
    assert queue.bytes == sum([each.size for each in in_it]), queue.bytes
    assert queue.spans == sum([each.spans for each in in_it]), queue.spans
    put = queue.spans + queue.counts.crowded_out + queue.left_out
    assert put in range(0, 19, 3) and (put == 18 or raised is not None), put
    fresh()
assert failed > 20, failed
"""
)


@pytest.mark.parametrize("program", [HAND, SEND, CROWD], ids=["into requests", "out of the queue", "crowded out"])
def test_each_span_goes_once(program: str, run_failing: Callable[..., object]) -> None:
    run_failing(program)
