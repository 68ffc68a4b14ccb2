"""Threads without spans of their own get one trace per training step or outermost module call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler

from batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, make_batch
from otel_recfn.model.batch import Batch, Track
from otel_recfn.model.events import SOURCES, EventFlag, EventSource, SourceTraits, make_event_id
from otel_recfn.sinks.spans import step_traces
from otel_recfn.sinks.spans.provider import ProviderResolver
from otel_recfn.sinks.spans.step_traces import FIRST_ROOTS, NS_PER_SECOND, StepTrace, StepTraces
from otel_recfn.sinks.spans.surroundings import ProgramSpans, Surroundings

pytestmark = pytest.mark.one_python
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

    def run(
        self, *ranges: dict[str, Any], thread: Track = MAIN_THREAD, one_batch: bool = True
    ) -> list[StepTrace | None]:
        """Run ranges one after the other; the trace of each."""
        events = [self._event(one, thread) for one in ranges]
        groups = [events] if one_batch else [[event] for event in events]
        for group in groups:
            self.take(
                make_batch(
                    [row for _, rows in group for row in rows], [opened for opened, _ in group]
                )
            )
        return [self.traces.find(opened["event_id"]) for opened, _ in events]

    def take(self, batch: Batch) -> None:
        self.traces.advance(batch, self.target)

    def names(self) -> list[str]:
        return [trace.name for trace in taken_from(self.traces)]

    def _event(
        self, one: dict[str, Any], thread: Track
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        one = dict(one)
        self.now_ns += one.pop("after_ns", MS)
        start_ns, event_id = self.now_ns, self._next_id(thread)
        rows = []
        for child in one.pop("children", ()):
            self.now_ns += MS
            rows.append(self._row(child, thread, self._next_id(thread), parent=event_id))
        self.now_ns += MS
        rows.append(
            {**self._row(one, thread, event_id), "start_ns": start_ns, "end_ns": self.now_ns}
        )
        if one.pop("stays_open", False):
            rows.pop()
        return {"event_id": event_id, "start_ns": start_ns, "thread": thread, **one}, rows

    def _row(
        self, one: dict[str, Any], thread: Track, event_id: int, parent: int = 0
    ) -> dict[str, Any]:
        columns = {"name": one["name"], "source": one["source"], "flags": one.get("flags", 0)}
        columns |= {"event_id": event_id, "thread": thread}
        return {
            **columns,
            "parent": parent,
            "root": parent or event_id,
            "start_ns": self.now_ns,
            "end_ns": self.now_ns,
        }

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


@pytest.mark.parametrize("one_batch", [True, False])
class TestBoundaries:
    """In one batch or in one per range: the same traces."""

    def test_training_steps(self, one_batch: bool) -> None:
        program = Program()
        program.run(optimizer(), one_batch=one_batch)
        step = [module(), module("nn.Module: Loss_0"), op("backward"), optimizer()]
        traces = program.run(*step, *step, op("zero_grad"), one_batch=one_batch)
        assert grouping(traces) == "aaaabbbbc"
        program.traces.close_all()
        assert program.names() == ["training step", "training step", "training step", "MainThread"]

    def test_inference_is_a_trace_per_module_call(self, one_batch: bool) -> None:
        program = Program()
        traces = program.run(
            op(),
            module("nn.Module: Net_0"),
            op(),
            module("nn.Module: Net_0"),
            op(),
            one_batch=one_batch,
        )
        assert grouping(traces) == "aaabb"
        program.traces.close_all()
        assert program.names() == ["module call: Net_0", "module call: Net_0"]

    @pytest.mark.parametrize("most", [64, 1024])
    def test_training_thread_takes_many_module_calls(self, one_batch: bool, most: int) -> None:
        program = Program()
        program.run(optimizer(), one_batch=one_batch)
        call = evaluation() if most == 64 else module()
        traces = program.run(*[call] * (most + 1), one_batch=one_batch)
        assert grouping(traces) == "a" * most + "b"

    def test_validation_is_no_part_of_a_training_step(self, one_batch: bool) -> None:
        program = Program()
        program.run(optimizer(), one_batch=one_batch)
        step, validation = (
            [op("to"), module(), op("loss"), op("backward"), optimizer()],
            [op("to"), evaluation(), op("metric")],
        )
        traces = program.run(
            *step, *step, *validation, *validation, *step, *validation, one_batch=one_batch
        )
        assert (
            grouping(traces) == "a" * 5 + "b" * 5 + "c" * 6 + "c" + "d" * 4 + "e" * 3
        )  # the first copy may be a validation's
        program.traces.close_all()
        training, validating = "training step", "module call: Net_0"
        assert program.names() == [training, training, training, validating, training, validating]

    def test_training_steps_are_numbered_in_their_thread(self, one_batch: bool) -> None:
        program = Program()
        step = [module(), op("backward"), optimizer(), optimizer()]
        program.run(*step, evaluation(), *step, *step, one_batch=one_batch)
        program.run(*step, thread=WORKER_THREAD, one_batch=one_batch)
        program.traces.close_all()
        numbers = {
            (trace.thread.number, trace.number)
            for trace in taken_from(program.traces)
            if trace.trains
        }
        assert numbers == {(1, 0), (1, 1), (1, 2), (2, 0)}

    def test_idle_thread_starts_anew(self, one_batch: bool) -> None:
        program = Program()
        rest_ns = NS_PER_SECOND // 10
        traces = program.run(
            op(),
            {**op(), "after_ns": rest_ns},
            {**op(), "after_ns": rest_ns + 1},
            one_batch=one_batch,
        )
        assert grouping(traces) == "aab"

    def test_threads_have_traces_of_their_own(self, one_batch: bool) -> None:
        program = Program()
        main = program.run(op(), op(), one_batch=one_batch)
        worker = program.run(op(), op(), thread=WORKER_THREAD, one_batch=one_batch)
        assert grouping([*main, *worker]) == "aabb"
        assert worker[0] is not None
        assert worker[0].thread == WORKER_THREAD


@pytest.mark.parametrize(("begins_traces", "groups"), [(True, "aaab"), (False, "aaaa")])
def test_a_source_of_any_kind_says_what_its_traces_are_called(
    monkeypatch: pytest.MonkeyPatch, begins_traces: bool, groups: str
) -> None:
    ours = SourceTraits(call_prefix="py: ", trace_name="call of {}", begins_traces=begins_traces)
    monkeypatch.setitem(SOURCES, EventSource.RECORD_FUNCTION, ours)
    call = {"name": "py: f", "source": EventSource.RECORD_FUNCTION}
    program = Program()
    assert grouping(program.run(call if not begins_traces else op(), op(), call, call)) == groups
    program.traces.close_all()
    assert set(program.names()) == {"call of f"}


def test_first_step_is_whole_when_its_optimizer_is_in_the_batch() -> None:
    program = Program()
    assert (
        grouping(program.run(module(), module("nn.Module: Loss_0"), optimizer(), module()))
        == "aaab"
    )


class TestRootSpan:
    def test_waits_for_a_range_that_is_open_across_a_boundary(self) -> None:
        program = Program()
        (spanning,) = program.run({**module(), "stays_open": True})
        (following,) = program.run(module())
        assert grouping([spanning, following]) == "ab"
        assert program.names() == []
        end_ns = program.now_ns + MS
        program.take(
            make_batch(
                [{"event_id": make_event_id(1, 1), "start_ns": BASE_NS + MS, "end_ns": end_ns}]
            )
        )
        (trace,) = taken_from(program.traces)
        assert trace is spanning
        assert trace.end_ns == end_ns

    def test_idle_trace_ends_when_asked(self) -> None:
        program = Program()
        program.run(op())
        program.traces.close_idle(program.now_ns + NS_PER_SECOND)
        assert program.names() == []
        program.traces.close_idle(program.now_ns + NS_PER_SECOND + 1)
        assert program.names() == ["MainThread"]

    def test_the_trace_of_a_thread_that_never_returns_ends_with_a_drain(self) -> None:
        program = Program()
        program.run(op(), thread=WORKER_THREAD)
        program.run({**op(), "after_ns": 3 * NS_PER_SECOND})
        program.traces.close_idle(program.now_ns)
        assert program.names() == ["operators"]


class TestLosses:
    def test_unannounced_range_is_taken_in(self) -> None:
        program = Program()
        (first,) = program.run(op())
        times = {"start_ns": program.now_ns, "end_ns": program.now_ns}
        ids = [(make_event_id(track.number, 50), track) for track in (WORKER_THREAD, MAIN_THREAD)]
        program.take(
            make_batch(
                [{"event_id": event_id, "thread": track, **times} for event_id, track in ids]
            )
        )
        elsewhere, here = [program.traces.find(event_id) for event_id, _ in ids]
        assert here is first
        assert elsewhere is not None
        assert elsewhere.thread == WORKER_THREAD

    def test_late_child_finds_its_trace_after_the_root_is_out(self) -> None:
        program = Program()
        (first,) = program.run(module())
        program.run(module())
        assert program.names() == ["module call: Net_0"]
        assert program.traces.find(make_event_id(1, 1)) is first

    def test_also_open_ones_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(step_traces, "MAX_REMEMBERED_ROOTS", 3)
        program = Program()
        program.run(*[{**op(), "stays_open": True}] * 20, one_batch=False)
        remembered = [
            ordinal
            for ordinal in range(1, 21)
            if program.traces.find(make_event_id(1, ordinal)) is not None
        ]
        assert len(remembered) <= 7


class TestRefusedTraces:
    def test_what_the_sampler_refuses_takes_no_token(self) -> None:
        program = Program(roots_per_second=0, sampler=ALWAYS_OFF)
        program.run(*[module()] * (FIRST_ROOTS + 2))
        assert all(program.traces.limiter.admit(program.now_ns) for _ in range(FIRST_ROOTS))
