"""Requests that are crowded out, refused, or given up at the end: no span arrives whose parent doesn't, and all are counted."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from otlp_plans import target

from otel_recfn.sinks.lost_places import Place, Places
from otel_recfn.sinks.otlp import family, request_queue
from otel_recfn.sinks.otlp.backoff import Backoff
from otel_recfn.sinks.otlp.encoded import EncodedSpans
from otel_recfn.sinks.otlp.envelope import Envelope, Request, RequestBuilder
from otel_recfn.sinks.otlp.kin import read_kin
from otel_recfn.sinks.otlp.outcome import Outcome, Verdict
from otel_recfn.sinks.otlp.request_queue import RequestQueue
from otel_recfn.sinks.otlp.senders import _compressed
from otel_recfn.sinks.otlp.wire import field, fixed32, text

pytestmark = pytest.mark.one_python

PROGRAMS = 0xDEF
"""A span of the program's, which we don't send."""
ROOT = 0
TRACES = (0xABC << 64 | 5, 0xABD << 64 | 6)


class Row(NamedTuple):
    """A span to be sent."""

    trace_id: int
    span_id: int
    parent: int
    state: str = ""


def field_of(row: Row) -> bytes:
    ids = field(1, row.trace_id.to_bytes(16, "big")) + field(2, row.span_id.to_bytes(8, "big")) + text(3, row.state)
    parent = field(4, row.parent.to_bytes(8, "big")) if row.parent else b""
    return field(2, ids + parent + text(5, f"span {row.span_id}") + fixed32(16, 0x100))


def encoded_rows(rows: Sequence[Row]) -> EncodedSpans:
    fields = [field_of(row) for row in rows]
    ends = np.cumsum([len(each) for each in fields])
    places = Places(np.zeros(len(rows), np.int64), lambda _number: Place(rows[0].trace_id))
    return EncodedSpans(b"".join(fields), ends, places=places, kin=read_kin(b"".join(fields), ends).kin)


def requests_of(rows: Sequence[Row], sizes: Callable[[], int], envelope: Envelope) -> list[Request]:
    made, left = [], list(rows)
    while left:
        count = sizes()
        builder = RequestBuilder(envelope, 1 << 20)
        builder.add(encoded_rows(left[:count]))
        made.append(builder.request())
        left = left[count:]
    return made


class Server:
    """Has taken these."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def take(self, body: bytes) -> None:
        for each in ExportTraceServiceRequest.FromString(body).resource_spans:
            for span in each.scope_spans[0].spans:
                trace_id, span_id, parent = [
                    int.from_bytes(part, "big") for part in (span.trace_id, span.span_id, span.parent_span_id)
                ]
                assert (span.name, span.flags) == (f"span {span_id}", 0x100)
                self.rows.append(Row(trace_id, span_id, parent, span.trace_state))

    def orphans(self) -> list[Row]:
        there = {row[:2] for row in self.rows}
        assert len(there) == len(self.rows), "a span came twice"
        return [row for row in self.rows if row.parent not in (ROOT, PROGRAMS) and (row.trace_id, row.parent) not in there]


def some_rows(chosen: random.Random) -> list[Row]:
    """Trees of spans, in any order."""
    rows = [Row(chosen.choice(TRACES), 1, chosen.choice((ROOT, PROGRAMS)))]
    for span_id in range(2, chosen.choice((5, 20, 60))):
        above = chosen.choice(rows[-6:])
        parent = chosen.choice((ROOT, PROGRAMS)) if not chosen.randrange(6) else above.span_id
        rows.append(Row(above.trace_id, span_id, parent, chosen.choice(("", "a=1", "b=" + "x" * 300, "c=" + "y" * 17_000))))
    order = chosen.choice(("as they began", "as they end", "any"))
    if order == "as they end":
        rows.reverse()
    elif order == "any":
        chosen.shuffle(rows)
    return rows


class Outage:
    """A queue that is too small, and senders that may fail."""

    def __init__(self, chosen: random.Random, most_bytes: int) -> None:
        self.chosen, self.server = chosen, Server()
        self.queue = RequestQueue(most_bytes, Backoff(chance=lambda: 0.0), lambda: 1e9 if self.asks_now else 0.0)
        self.asks_now = True
        self.sending: list[Request] = []
        self.refused: set[tuple[int, int]] = set()
        self.refused_before: dict[Request, set[tuple[int, int]]] = {}
        """For each request, what was known to be refused when it was begun to be sent."""
        self.sent_before: set[Row] = set()
        """What lies in spans that were refused only then, or later: nobody can change that any more."""

    def begin(self) -> None:
        if self.queue._waiting:
            self.queue.ask_now()
            request = self.queue.take()
            assert request is not None
            if not request.encoding and self.chosen.randrange(2):
                self.queue.compressed(request, _compressed(request.body, "gzip"), "gzip")
            self.sending.append(request)
            self.refused_before[request] = set(self.refused)

    def end(self, verdict: Verdict, *, rejected: bool = False) -> None:
        if self.sending:
            request, known = self.sending.pop(self.chosen.randrange(len(self.sending))), len(self.server.rows)
            refused_before = self.refused_before.pop(request)
            if verdict is not Verdict.AGAIN:
                self.server.take(family._whole(request))
            if verdict is Verdict.REFUSED or rejected:
                self.refused.update([row[:2] for row in self.server.rows[known:]])
                del self.server.rows[known:]
            for row in self.server.rows[known:]:
                if (row.trace_id, row.parent) not in refused_before:
                    self.sent_before.add(row)
            self.queue.settle(request, Outcome(verdict, rejected=request.spans * rejected))

    def send_all(self) -> None:
        while self.sending:
            self.end(Verdict.TAKEN)
        while self.queue._waiting:
            self.begin()
            self.end(Verdict.TAKEN)


def play(seed: int, *, refuses: bool = False) -> None:
    chosen = random.Random(seed)
    where = target()
    envelope, rows = Envelope(where.resource, where.scope), some_rows(chosen)
    outage = Outage(chosen, chosen.choice((1, 1200, 3000, 1 << 20)))
    for request in requests_of(rows, lambda: chosen.randint(1, 5), envelope):
        outage.queue.put(request)
        for _ in range(chosen.randrange(3)):
            outage.begin()
        for _ in range(chosen.randrange(3)):
            outage.end(chosen.choice((Verdict.TAKEN, Verdict.TAKEN, Verdict.AGAIN)))
        if refuses and not chosen.randrange(3):
            outage.end(chosen.choice((Verdict.REFUSED, Verdict.TAKEN)), rejected=True)
    outage.send_all()
    orphans = outage.server.orphans()
    assert [row for row in orphans if row not in outage.sent_before or row[::2] not in outage.refused] == []
    queue, counts = outage.queue, outage.queue.counts
    assert len(outage.server.rows) == counts.exported
    assert counts.exported + counts.refused + counts.rejected + counts.crowded_out == len(rows)
    assert (queue.bytes, queue.spans) == (0, 0)


def test_what_must_not_be_missing_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_queue, "MOST_NEEDED_BYTES", 2000)
    where, queue, [trace_id, _] = target(), RequestQueue(1), TRACES
    envelope = Envelope(where.resource, where.scope)
    children = [Row(trace_id, 1000 + span_id, span_id) for span_id in range(1, 200)]
    [taken, *parents] = [
        *requests_of(children, lambda: 200, envelope),
        *requests_of([Row(trace_id, child.parent, PROGRAMS) for child in children], lambda: 5, envelope),
    ]
    queue._family.sent(taken)
    kept = []
    for each in parents:
        queue.put(each)
        assert queue.bytes <= 2000
        kept.append(queue.spans)
    assert max(kept) > 5
    assert queue.spans + queue.counts.crowded_out == len(children)


def test_what_must_not_be_missing_is_sent_in_requests_as_large_as_any() -> None:
    where, queue, [trace_id, _] = target(), RequestQueue(1, request_bytes=2000), TRACES
    envelope = Envelope(where.resource, where.scope)
    children = [Row(trace_id, 1000 + span_id, span_id) for span_id in range(1, 200)]
    [taken, *parents] = [
        *requests_of(children, lambda: 200, envelope),
        *requests_of([Row(trace_id, child.parent, PROGRAMS) for child in children], lambda: 5, envelope),
    ]
    queue._family.sent(taken)
    for each in parents:
        queue.put(each)
    sent = []
    while queue.spans:
        request = queue.take()
        assert request is not None
        queue.settle(request, Outcome(Verdict.TAKEN))
        sent.append(request)
    assert max([len(request.body) for request in sent]) <= 2000
    assert 1 < len(sent) < len(parents)
    assert sum([request.spans for request in sent]) == len(children)
    assert [request.places for request in sent] == [{Place(trace_id): request.spans} for request in sent]


@pytest.mark.parametrize("refuses", [False, True], ids=["none refused", "some refused"])
@pytest.mark.parametrize("first", range(0, 600, 100))
def test_no_orphan_arrives(first: int, refuses: bool) -> None:
    """But for what was sent before what it lies in was refused."""
    for seed in range(first, first + 100):
        try:
            play(seed, refuses=refuses)
        except BaseException as error:
            error.args = (f"seed {seed}: {error}",)
            raise
