"""One random program above a background spans sink, in one order of its threads; and whether a span arrived without its parent.

Ranges begin in anything that began before, open or ended, and end in any order. The queue before the spans' thread is small,
exporters hang, memory is missing, processors raise, and the end comes whenever it likes, with more or less time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from turns import Hangs, Turns, replaced

from batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, context, make_batch
from otel_recfn.batches import gaps
from otel_recfn.batches.fold.kept_rows import KeptRows
from otel_recfn.batches.gaps import Gaps
from otel_recfn.model.batch import NO_CONTEXT, Batch
from otel_recfn.model.events import EventFlag, EventSource, make_event_id
from otel_recfn.sinks.background import BackgroundSink
from otel_recfn.sinks.spans import batch_writing, folding, mapping, pending, provider
from otel_recfn.sinks.spans.accounts import Accounts
from otel_recfn.sinks.spans.budgets import EVERY_RANGE, Volume
from otel_recfn.sinks.spans.delivery import SpanDelivery
from otel_recfn.sinks.spans.open_units import OpenUnits
from otel_recfn.sinks.spans.sink import SpansSink
from otel_recfn.sinks.spans.step_traces import StepTraces
from otel_recfn.sinks.spans.surroundings import Surroundings
from otel_recfn.sinks.spans.writers import Folded
from otel_recfn.support.span_ids import span_id
from otel_recfn.support.thread_time import LOOK_S, LOOKS_AT_REST

RESOURCE = Resource({})  # each provider would look for one anew
REQUEST = context(trace_id=0xABC, span_id=0xDEF)
THREADS = (MAIN_THREAD, WORKER_THREAD)
REQUEST_NAME = "request"
WITHOUT_LIMIT = 1 << 20
TOO_SMALL = (8, 2)
"""For what may be left at the very end."""
VOLUMES = (EVERY_RANGE, Volume(1), Volume(2), Volume(3, 2, 6), Volume(1000), Volume(4, min_duration_ns=500))
MEMORY_IS_ASKED_FOR = (
    (batch_writing, "fates_of"), (batch_writing, "plan_spans"), (mapping, "ReadableSpan"), (pending, "merged"),
    (gaps, "merged"),
    (Gaps, "kept_of"), (Gaps, "mended"), (Gaps, "_add"), (SpanDelivery, "with_more"), (Accounts, "plus"),
    (Accounts, "plus_rows"), (KeptRows, "take"), (KeptRows, "add"), (folding, "Summaries"), (folding.Folding, "_plan"),
    (folding.Summaries, "make"),
    (OpenUnits, "note"), (StepTraces, "close_all"), (StepTraces, "close_idle"), (StepTraces, "advance"),
    (Surroundings, "without_inherited"), (pending.PendingBatches, "first"), (Gaps, "owe"), (Folded, "note_gap"),
)  # fmt: skip


class Server:
    """Keeps what is exported to it; hangs while it is told to."""

    def __init__(self, turns: Turns) -> None:
        self._turns, self.hangs = turns, False
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> None:
        if all(span.name == REQUEST_NAME for span in spans):  # in the program's own thread it is the program's own doing
            self.spans.extend(spans)
            return
        self._turns.may_switch()
        if self.hangs and not self._turns.wait_for(lambda: not self.hangs, math.inf):
            raise Hangs("the program waits for an exporter that hangs")
        self.spans.extend(spans)
        self._turns.may_switch()

    def orphans(self, others: set[tuple[int, int]]) -> list[str]:
        there = {(span.context.trace_id, span.context.span_id) for span in self.spans} | others
        assert len(there) == len(self.spans) + len(others), "a span came twice"
        return [span.name for span in self.spans if span.parent and (span.parent.trace_id, span.parent.span_id) not in there]


class AtOnce(SpanProcessor):
    """Exports each span as it comes."""

    def __init__(self, server: Server) -> None:
        self.span_exporter = server

    def on_end(self, span: ReadableSpan) -> None:
        self.span_exporter.export((span,))

    def force_flush(self, timeout_millis: int = 0) -> bool:
        return True


class Raises(SpanProcessor):
    """At every span of ours."""

    def on_end(self, span: ReadableSpan) -> None:
        if span.name != REQUEST_NAME:
            raise KeyError(span.name)


class _Queue:
    """What a BatchSpanProcessor has in it, in turns."""

    def __init__(self, turns: Turns, server: Server, size: int, batch: int) -> None:
        self._exporter, self._max_queue_size, self._max_export_batch_size = server, size, batch
        self._turns, self._exporting, self.ended = turns, False, False
        self._spans: deque[ReadableSpan] = deque()
        self.lost = 0
        turns.start(self._work)

    def emit(self, span: ReadableSpan) -> None:
        self._turns.may_switch()
        if len(self._spans) == self._max_queue_size:
            self._spans.popleft()
            self.lost += 1
        self._spans.append(span)
        self._turns.may_switch()

    def force_flush(self, timeout_millis: int | None = None) -> bool:
        self._export(1)
        return True

    def _work(self) -> None:
        while not self.ended:
            is_due = self._turns.wait_for(lambda: self.ended or len(self._spans) >= self._max_export_batch_size, 5.0)
            self._export(self._max_export_batch_size if is_due else 1)
        self._export(1)

    def _export(self, least: int) -> None:
        if self._exporting and not self._turns.wait_for(lambda: not self._exporting, math.inf):
            raise Hangs("the program waits for a processor whose exporter hangs")
        self._exporting = True
        try:
            while len(self._spans) >= least:
                count = min(self._max_export_batch_size, len(self._spans))
                self._exporter.export([self._spans.popleft() for _ in range(count)])
        finally:
            self._exporting = False


class Queueing(BatchSpanProcessor):
    """A BatchSpanProcessor, whose thread takes turns with the others."""

    def __init__(self, turns: Turns, server: Server, size: int, batch: int) -> None:
        self._batch_processor = _Queue(turns, server, size, batch)  # type: ignore[assignment]

    def shutdown(self) -> None:
        self._batch_processor.ended = True  # type: ignore[attr-defined]


class NoMemory:
    """For the next few that ask."""

    def __init__(self) -> None:
        self.left = 0

    def replace(self, patch: pytest.MonkeyPatch) -> None:
        for owner, name in MEMORY_IS_ASKED_FOR:
            patch.setattr(owner, name, self._asking(getattr(owner, name)))

    def _asking(self, made: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*arguments: Any, **keywords: Any) -> Any:
            if self.left:
                self.left -= 1
                raise MemoryError
            return made(*arguments, **keywords)

        return ask


class Case(NamedTuple):
    """What differs from program to program."""

    volume: Volume
    queued: int
    chunk: int
    rows_of_a_part: int
    processors: str
    queue: tuple[int, int]
    memory_fails: bool
    timeout_s: float
    steps: int
    any_thread: bool

    @classmethod
    def chosen(cls, choose: Callable[[int], int]) -> Case:
        def one_of(*values: Any) -> Any:
            return values[choose(len(values))]

        return cls(
            volume=one_of(*VOLUMES),
            queued=one_of(1, 2, 3, 5, 12, WITHOUT_LIMIT),
            chunk=one_of(1, 2, 3, 4),
            rows_of_a_part=one_of(2, 3, 5, 100),
            processors=one_of("queue", "at once", "queue and at once", "raises and queue"),
            queue=one_of((WITHOUT_LIMIT, WITHOUT_LIMIT // 4), (32, 4), (64, 16), TOO_SMALL),
            memory_fails=not choose(3),
            timeout_s=one_of(0.0, 0.01, 0.1, 5.0, 60.0),
            steps=one_of(5, 10, 20, 40),
            any_thread=bool(choose(2)),
        )


class Explored:
    """One program, from its begin to its end.

    Args:
        choose: given n, a number below it: whatever may happen one way or the other.
        patch: is undone by the caller.
    """

    def __init__(self, choose: Callable[[int], int], patch: pytest.MonkeyPatch) -> None:
        self.choose, self.turns = choose, Turns(choose)
        self.case = Case.chosen(choose)
        self.threads = replaced(self.turns, patch)
        patch.setattr(provider, "MAX_CHUNK", self.case.chunk)
        patch.setattr(provider, "takes_any_thread", lambda exporter: self.case.any_thread)
        patch.setattr(folding, "MAX_ROWS_OF_A_UNIT", self.case.rows_of_a_part)
        self.memory = NoMemory()
        self.memory.replace(patch)
        self.provider = TracerProvider(shutdown_on_exit=False, resource=RESOURCE)
        self.server, self.second = Server(self.turns), Server(self.turns)
        self.queues: list[Queueing] = []
        self._add_processors()
        self.spans_sink = SpansSink(self.provider, None, volume=self.case.volume)
        self.sink = BackgroundSink(self.spans_sink, self.case.queued, max_share=0.5)
        self.begun: list[dict[str, Any]] = []
        self.open: list[dict[str, Any]] = []
        self.closed: list[dict[str, Any]] = []
        self.opened: list[dict[str, Any]] = []
        self.batches: deque[Batch] = deque()
        self.spans: list[Any] = []
        self.log: list[str] = []

    def _add_processors(self) -> None:
        servers = [self.server, self.second]
        for kind in self.case.processors.split(" and "):
            if kind == "queue":
                self.queues.append(Queueing(self.turns, servers.pop(0), *self.case.queue))
                self.provider.add_span_processor(self.queues[-1])
            else:
                self.provider.add_span_processor(AtOnce(servers.pop(0)) if kind == "at once" else Raises())

    def play(self) -> None:
        """The program, and its end; fails where a span is an orphan, or the rows don't add up."""
        actions = [self.begin] * 8 + [self.end] * 5 + [self.write] * 5 + [self.go_on] * 4 + [self.flush, self.hang, self.let_go]
        actions += [self.begin_span, self.end_span, self.tell_open] + [self.take_memory] * self.case.memory_fails
        for _ in range(self.case.steps):
            actions[self.choose(len(actions))]()
        self.finish()
        self.check()

    def begin(self) -> None:
        number = self.choose(10)
        above = self.begun[-1 - number % len(self.begun)] if self.begun and number > 1 else None
        thread = THREADS[self.choose(2)]
        event_id = make_event_id(thread.number, len(self.begun) + 1)
        contexts = [REQUEST, NO_CONTEXT, *[context(*span.get_span_context()[:2]) for span in self.spans]]
        ref = above["context"] if above else contexts[self.choose(len(contexts))]
        flags = EventFlag.ASYNC * (not self.choose(6)) | EventFlag.SHOWN * (not self.choose(8))
        row = {"event_id": event_id, "thread": thread, "start_ns": BASE_NS + 10 * len(self.begun), "context": ref}
        row |= {"parent": above["event_id"] if above else 0, "root": above["root"] if above else event_id, "flags": flags}
        row["name"] = ("forward", "backward")[self.choose(2)]
        if above is None:
            begin = {key: row[key] for key in ("event_id", "start_ns", "context", "thread", "name")}
            self.opened.append(begin | {"source": (EventSource.TORCH, EventSource.MODULE)[self.choose(2)]})
            for span in self.spans:
                if ref[:2] == span.get_span_context()[:2]:
                    self.spans_sink.saw(*ref[:2], span)
        self.begun.append(row)
        self.open.append(row)
        self.log.append(f"begin {_label(row)} in {_label(above) if above else contexts.index(ref)} {flags!r}")

    def end(self) -> None:
        if self.open:
            row = self.open.pop(-1 - self.choose(10) % len(self.open))
            row["end_ns"] = BASE_NS + 1000 + 100 * len(self.begun)
            self.closed.append(row)
            self.log.append(f"end {_label(row)}")

    def begin_span(self) -> None:
        if len(self.spans) < 2:
            self.spans.append(self.provider.get_tracer("program").start_span(REQUEST_NAME, start_time=BASE_NS))

    def end_span(self) -> None:
        if self.spans:
            self.spans[self.choose(len(self.spans))].end()

    def write(self) -> None:
        """As a capture does: what there is no memory for waits, and comes first the next time."""
        if self.closed or self.opened:
            drained_ns = BASE_NS + 1_000_000 * (len(self.log) + 1)
            self.batches.append(replace(make_batch(self.closed, self.opened), drained_ns=drained_ns))
        self.log.append(f"write {' '.join(map(_label, self.closed))}")
        self.closed, self.opened = [], []
        self.deliver(ending=False)

    def deliver(self, *, ending: bool) -> None:
        while self.batches and (ending or self._has_room()):
            try:
                self.sink.write(self.batches[0])
            except MemoryError:
                return
            self.batches.popleft()

    def tell_open(self) -> None:
        """As a drain does now and then, of all that are open."""
        self.log.append(f"tell {' '.join(map(_label, self.open))}")
        now_ns, partial = BASE_NS + 10_000 + len(self.log), int(EventFlag.PARTIAL)
        try:
            self.sink.write_open(make_batch([{**row, "end_ns": now_ns, "flags": row["flags"] | partial} for row in self.open]))
        except MemoryError:
            pass

    def _has_room(self) -> bool:
        try:
            return self.sink.has_room()
        except MemoryError:
            return False

    def go_on(self) -> None:
        for _ in range(self.choose(12)):
            self.turns.step()

    def flush(self) -> None:
        try:
            self.log.append(f"flush {self.sink.flush((0.0, 0.02, 3.0)[self.choose(3)])}")
        except MemoryError:
            pass

    def hang(self) -> None:
        self._set_hanging(True)

    def let_go(self) -> None:
        self._set_hanging(False)

    def _set_hanging(self, hangs: bool) -> None:
        server = (self.server, self.second)[self.choose(2)]
        self.log.append(f"{'hang' if hangs else 'go on'} {server is self.second}")
        server.hangs = hangs

    def take_memory(self) -> None:
        self.memory.left = 1 + self.choose(6)
        self.log.append(f"no memory for {self.memory.left}")

    def finish(self) -> None:
        """Where the time is long, exporters go on in it, and there is memory again."""
        if self.case.timeout_s > 1 or not self.choose(2):
            self.server.hangs = self.second.hangs = False
        for row in reversed(self.open):
            row["end_ns"] = BASE_NS + 100_000
            row["flags"] |= EventFlag.PARTIAL * (not self.choose(2))
        self.closed += reversed(self.open)
        self.write()
        if self.case.timeout_s > 1 or not self.choose(4):
            self.memory.left = 0
        for _ in range(100):
            self.deliver(ending=True)
        began = self.turns.now
        self.log.append(f"close {self.case.timeout_s} at {began}")
        self.process_ends = not self.choose(2)
        if self.process_ends:
            self.log.append(f"the process ends: {self.sink.process_ends(2.0)}")
        self.sink.close(self.case.timeout_s)
        self._check_end(self.turns.now - began)
        self.log.append(f"closed at {self.turns.now}")
        self.memory.left = 0
        self.server.hangs = self.second.hangs = False
        while self.threads[-1].is_alive() and self.turns.step():
            pass
        assert not self.threads[-1].is_alive(), "the spans' thread does not end"
        for queue in self.queues:
            queue.shutdown()
        self.turns.finish()

    def _check_end(self, took_s: float) -> None:
        """The program waits no longer than it may, but for a thread that works: that is done, then."""
        works = self.threads[-1].is_alive()
        at_rest_s = LOOKS_AT_REST * LOOK_S * works
        assert took_s <= self.case.timeout_s + at_rest_s + 0.11 or not works, f"the program had to wait: {took_s}"
        waits = self.server.hangs or self.second.hangs or "at once" in self.case.processors or self.sink._worker.is_superseded
        assert waits or not works, "the spans' thread goes on after the end"

    def check(self) -> None:
        self._check_counters()
        others = {REQUEST[:2], *[tuple(span.get_span_context()[:2]) for span in self.spans if not span.end_time]}
        exported = [server for server in (self.server, self.second) if server.spans]
        for server in exported:
            sent = {(span.context.trace_id, span.context.span_id) for span in server.spans}
            orphans = server.orphans({*others, *self._ended_spans()} - sent)
            assert not orphans, f"orphans: {orphans}"
        assert not [queue for queue in self.queues if queue._batch_processor.lost]  # type: ignore[attr-defined]
        if not (self.case.memory_fails or self.process_ends or self.case.queue == TOO_SMALL):
            self._check_shown()

    def _ended_spans(self) -> set[tuple[int, int]]:
        return {tuple(span.get_span_context()[:2]) for span in self.spans}  # type: ignore[misc]

    def _check_counters(self) -> None:
        counters = self.sink.counters()
        lost = counters["queue_dropped"] + counters["abandoned"] + counters["queued"]
        undelivered = sum([len(batch) for batch in self.batches])
        assert counters["rows_received"] == counters["rows"] + lost == len(self.begun) - undelivered
        fates = ("unsampled", "suppressed", "no_provider", "other_kinds", "folded", "folding", "failed", "spans")
        came = sum([counters[name] for name in ("rows", "roots", "summaries", "open_ranges")])
        assert came == sum([counters[fate] for fate in fates])
        assert counters["folding"] == 0, f"still folding: {counters['folding']}"
        assert min(counters.values()) >= 0

    def _check_shown(self) -> None:
        """What the program saw as current may be the parent of spans that it has sent."""
        sent = {span.context.span_id for span in self.server.spans}
        shown = {_label(row) for row in self.begun if row["flags"] & EventFlag.SHOWN and span_id(row["event_id"]) not in sent}
        assert not shown, f"not sent: {shown}"


def _label(row: dict[str, Any]) -> str:
    return f"{(row['event_id'] & 0xFFFF) - 1}"


def explore(choose: Callable[[int], int]) -> None:
    """Play one program; a failure says what it did."""
    with pytest.MonkeyPatch.context() as patch:
        explored = Explored(choose, patch)
        try:
            explored.play()
        except BaseException as error:
            error.args = (f"{error}\n{explored.case}\n" + "\n".join(explored.log),)
            raise
