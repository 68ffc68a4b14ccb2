"""Top-level ranges as a drain would announce and close them, and the traces that they get."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

from batches import BASE_NS, MAIN_THREAD, make_batch
from otel_recfn.model.batch import Batch, Track
from otel_recfn.model.events import EventFlag, EventSource, make_event_id
from otel_recfn.sinks.spans.provider import ProviderResolver
from otel_recfn.sinks.spans.step_traces import StepTrace, StepTraces
from otel_recfn.sinks.spans.surroundings import ProgramSpans, Surroundings

STEP = "Optimizer.step#SGD.step"
MS = 1_000_000


def module(name: str = "nn.Module: Net_0") -> dict[str, Any]:
    return {"name": name, "source": EventSource.MODULE}


def evaluation(name: str = "nn.Module: Net_0") -> dict[str, Any]:
    return {**module(name), "flags": EventFlag.EVALUATION}


def optimizer() -> dict[str, Any]:
    return {"name": STEP, "source": EventSource.MODULE}


def op(name: str = "aten::add") -> dict[str, Any]:
    return {"name": name, "source": EventSource.TORCH}


class Program:
    """Writes down top-level ranges, one after the other, as a drain would announce and close them."""

    def __init__(self, roots_per_second: float | None = None, sampler: Sampler = ALWAYS_ON) -> None:
        provider = TracerProvider(shutdown_on_exit=False, sampler=sampler)
        target = ProviderResolver(provider).resolve()
        assert target is not None
        self.target = target
        self.traces = StepTraces(roots_per_second, Surroundings(ProgramSpans()))
        self.now_ns = BASE_NS
        self.ordinal = 0
        self.by_name: list[tuple[str, int]] = []

    def run(self, *ranges: dict[str, Any], thread: Track = MAIN_THREAD, one_batch: bool = True) -> list[StepTrace | None]:
        """Run ranges one after the other; the trace of each."""
        events = [self._event(one, thread) for one in ranges]
        groups = [events] if one_batch else [[event] for event in events]
        for group in groups:
            self.take(make_batch([row for _, rows in group for row in rows], [opened for opened, _ in group]))
        return [self.traces.find(opened["event_id"]) for opened, _ in events]

    def take(self, batch: Batch) -> None:
        self.traces.advance(batch, self.target)

    def names(self) -> list[str]:
        return [trace.name for trace in taken_from(self.traces)]

    def _event(self, one: dict[str, Any], thread: Track) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        one = dict(one)
        self.now_ns += one.pop("after_ns", MS)
        start_ns, event_id = self.now_ns, self._next_id(thread)
        rows = []
        for child in one.pop("children", ()):
            self.now_ns += MS
            rows.append(self._row(child, thread, self._next_id(thread), parent=event_id))
        self.now_ns += MS
        rows.append({**self._row(one, thread, event_id), "start_ns": start_ns, "end_ns": self.now_ns})
        if one.pop("stays_open", False):
            rows.pop()
        return {"event_id": event_id, "start_ns": start_ns, "thread": thread, **one}, rows

    def _row(self, one: dict[str, Any], thread: Track, event_id: int, parent: int = 0) -> dict[str, Any]:
        columns = {"name": one["name"], "source": one["source"], "flags": one.get("flags", 0)}
        columns |= {"event_id": event_id, "thread": thread}
        return {**columns, "parent": parent, "root": parent or event_id, "start_ns": self.now_ns, "end_ns": self.now_ns}

    def _next_id(self, thread: Track) -> int:
        self.ordinal += 1
        return make_event_id(thread.number, self.ordinal)


def taken_from(traces: StepTraces) -> list[StepTrace]:
    """The traces whose root spans are complete, each once."""
    return traces.take_finished()


def grouping(traces: Iterable[StepTrace | None]) -> str:
    """A letter per range, the same for those in one trace."""
    seen: list[StepTrace | None] = []
    letters = []
    for trace in traces:
        if not any(trace is one for one in seen):
            seen.append(trace)
        letters.append("abcdefgh"[next(index for index, one in enumerate(seen) if one is trace)])
    return "".join(letters)
