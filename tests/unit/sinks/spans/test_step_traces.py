"""Threads without spans of their own get one trace per training step or outermost module call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    Decision,
    Sampler,
    SamplingResult,
    StaticSampler,
)

from helpers.batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, make_batch
from otel_recfn.model.batch import Batch, Track, TrainingStep
from otel_recfn.model.events import SOURCES, EventFlag, EventSource, SourceTraits, make_event_id
from otel_recfn.sinks.spans.process_context import ProcessContext
from otel_recfn.sinks.spans.program_spans import ProgramSpans
from otel_recfn.sinks.spans.provider import ProviderResolver
from otel_recfn.sinks.spans.root_limiter import FIRST_ROOTS, NS_PER_SECOND
from otel_recfn.sinks.spans.step_trace import StepTrace
from otel_recfn.sinks.spans.step_traces import StepTraces
from otel_recfn.support.processes import WorkerProcess

pytestmark = pytest.mark.one_python
STEP = "Optimizer.step#SGD.step"
MS = 1_000_000


def module(name: str = "nn.Module: Net_0") -> dict[str, Any]:
    return {"name": name, "source": EventSource.MODULE}


def evaluation(name: str = "nn.Module: Net_0") -> dict[str, Any]:
    return {**module(name), "flags": EventFlag.EVALUATION}


def optimizer() -> dict[str, Any]:
    return {"name": STEP, "source": EventSource.TORCH}


def first(one: dict[str, Any]) -> dict[str, Any]:
    """The same as the first range of a training step."""
    return {**one, "flags": EventFlag.BEGINS_STEP}


def op(name: str = "aten::add") -> dict[str, Any]:
    return {"name": name, "source": EventSource.TORCH}


class Program:
    """Writes down top-level ranges, one after the other, as a drain would announce and close
    them.
    """

    def __init__(
        self,
        roots_per_second: float | None = None,
        sampler: Sampler = ALWAYS_ON,
        worker: WorkerProcess | None = None,
    ) -> None:
        provider = TracerProvider(shutdown_on_exit=False, sampler=sampler)
        target = ProviderResolver(provider).resolve()
        assert target is not None
        self.target = target
        process_context = ProcessContext(ProgramSpans(), lambda: worker)
        self.traces = StepTraces(roots_per_second, process_context)
        self.now_ns = BASE_NS
        self.ordinal = 0
        self.by_name: list[tuple[str, int]] = []

    def run(
        self, *ranges: dict[str, Any], thread: Track = MAIN_THREAD, one_batch: bool = True
    ) -> list[StepTrace | None]:
        """Run ranges one after the other; the trace of each."""
        events = [self.event(one, thread) for one in ranges]
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

    def event(
        self, one: dict[str, Any], thread: Track
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        one = dict(one)
        self.now_ns += one.pop("after_ns", MS)
        start_ns = self.now_ns
        event_id = self._next_id(thread)
        rows = []
        for child in one.pop("children", ()):
            self.now_ns += MS
            rows.append(self._row(child, thread, self._next_id(thread), parent=event_id))
        self.now_ns += one.pop("lasts_ns", MS)
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

    def test_inference_is_a_trace_per_module_call(self, one_batch: bool) -> None:
        program = Program()
        traces = program.run(op(), evaluation(), op(), evaluation(), op(), one_batch=one_batch)
        assert grouping(traces) == "abbcc"
        program.traces.close_all()
        assert program.names() == ["MainThread", "module call: Net", "module call: Net"]

    def test_a_range_that_begins_a_step_begins_a_trace(self, one_batch: bool) -> None:
        program = Program()
        traces = program.run(
            op(),
            first(op()),
            module(),
            optimizer(),
            first(module()),
            optimizer(),
            one_batch=one_batch,
        )
        assert grouping(traces) == "abbbcc"
        program.traces.close_all()
        assert program.names() == ["MainThread", "training step", "training step"]

    def test_idle_thread_starts_anew(self, one_batch: bool) -> None:
        program = Program()
        idle_ns = NS_PER_SECOND // 10
        traces = program.run(
            op(),
            {**op(), "after_ns": idle_ns},
            {**op(), "after_ns": idle_ns + 1},
            one_batch=one_batch,
        )
        assert grouping(traces) == "aab"

    def test_a_thread_that_goes_on_has_another_trace_after_ten_seconds(
        self, one_batch: bool
    ) -> None:
        program = Program()
        pause = {**op(), "after_ns": NS_PER_SECOND // 10}
        assert grouping(program.run(*[pause] * 103, one_batch=one_batch)) == "a" * 100 + "bbb"
        step = [first(module()), *[{**op(), "after_ns": NS_PER_SECOND}] * 11]
        assert grouping(program.run(*step, one_batch=one_batch)) == "a" * 12

    def test_threads_have_traces_of_their_own(self, one_batch: bool) -> None:
        program = Program()
        main = program.run(op(), op(), one_batch=one_batch)
        worker = program.run(op(), op(), thread=WORKER_THREAD, one_batch=one_batch)
        assert grouping([*main, *worker]) == "aabb"
        assert worker[0] is not None
        assert worker[0].thread == WORKER_THREAD


def test_a_step_says_which_trace_is_its_own() -> None:
    program = Program()
    (begun, stepped) = program.run(first(module()), optimizer())
    assert begun is stepped
    assert begun is not None
    end_ns = begun.end_ns + 1
    last = make_event_id(MAIN_THREAD.number, 2)
    step = TrainingStep(7, last - 1, last, begun.start_ns, end_ns, 0, 0)
    program.take(replace(make_batch([]), steps=[step, step._replace(last=last + 100)]))
    assert (begun.number, begun.end_ns) == (7, end_ns)


@pytest.mark.parametrize(("begins_traces", "groups"), [(True, "aabc"), (False, "aaaa")])
def test_a_source_of_any_kind_says_what_its_traces_are_called(
    monkeypatch: pytest.MonkeyPatch, begins_traces: bool, groups: str
) -> None:
    ours = SourceTraits(call_prefix="py: ", trace_name="call of {}", begins_traces=begins_traces)
    monkeypatch.setitem(SOURCES, EventSource.RECORD_FUNCTION, ours)
    call = {"name": "py: f", "source": EventSource.RECORD_FUNCTION}
    program = Program()
    assert grouping(program.run(call if not begins_traces else op(), op(), call, call)) == groups
    program.traces.close_all()
    assert set(program.names()) - {"MainThread"} == {"call of f"}


@pytest.mark.parametrize("one_batch", [True, False])
def test_a_root_has_the_name_under_which_the_sampler_was_asked(one_batch: bool) -> None:
    sampler = Asked()
    program = Program(sampler=sampler)
    step = [first(module()), op("backward"), optimizer()]
    rest = {**op(), "after_ns": 2 * NS_PER_SECOND}
    program.run(
        op(),
        *step,
        *step,
        first(op()),
        evaluation(),
        op(),
        *step,
        rest,
        evaluation(),
        one_batch=one_batch,
    )
    program.traces.close_all()
    assert program.names() == sampler.names


class Asked(StaticSampler):
    """A sampler that takes all, and remembers what it was asked about."""

    def __init__(self) -> None:
        super().__init__(Decision.RECORD_AND_SAMPLE)
        self.names: list[str] = []

    def should_sample(
        self, parent_context: Any, trace_id: int, name: str, *rest: Any, **more: Any
    ) -> SamplingResult:
        self.names.append(name)
        return super().should_sample(parent_context, trace_id, name, *rest, **more)


class TestRootSpan:
    def test_waits_for_a_range_that_is_open_across_a_boundary(self) -> None:
        program = Program()
        (spanning,) = program.run({**evaluation(), "stays_open": True})
        (following,) = program.run(evaluation())
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
        (before,) = program.run(op())
        times = {"start_ns": program.now_ns, "end_ns": program.now_ns}
        ids = [(make_event_id(track.number, 50), track) for track in (WORKER_THREAD, MAIN_THREAD)]
        program.take(
            make_batch(
                [{"event_id": event_id, "thread": track, **times} for event_id, track in ids]
            )
        )
        elsewhere, here = [program.traces.find(event_id) for event_id, _ in ids]
        assert here is before
        assert elsewhere is not None
        assert elsewhere.thread == WORKER_THREAD

    def test_late_child_finds_its_trace_after_the_root_is_out(self) -> None:
        program = Program()
        (called,) = program.run(evaluation())
        program.run(evaluation())
        assert program.names() == ["module call: Net"]
        assert program.traces.find(make_event_id(1, 1)) is called

    def test_also_open_ones_are_bounded(self) -> None:
        program = Program()
        (oldest,) = program.run({**evaluation(), "stays_open": True})
        most = 1024
        program.run(*[{**evaluation(), "stays_open": True}] * (most + 2), one_batch=False)
        assert oldest in program.traces.take_finished()
        assert program.traces.find(make_event_id(1, 1)) is None
        newest = program.traces.find(make_event_id(1, most + 3))
        assert newest is not None
        assert not newest.is_published


class TestRefusedTraces:
    def test_what_the_sampler_refuses_takes_no_token(self) -> None:
        program = Program(roots_per_second=0, sampler=ALWAYS_OFF)
        program.run(*[evaluation()] * (FIRST_ROOTS + 2))
        assert all(program.traces.limiter.admit(program.now_ns) for _ in range(FIRST_ROOTS))

    def test_evaluation_takes_no_traces_from_the_steps_of_training(self) -> None:
        program = Program(roots_per_second=0)
        program.run(first(optimizer()))
        program.run(*[evaluation()] * (FIRST_ROOTS + 2))
        traces = program.run(first(module()), optimizer(), first(module()), optimizer())
        assert all(trace is not None for trace in traces)

    def test_what_follows_a_flush_in_a_training_step_takes_no_trace_from_others(self) -> None:
        program = Program(roots_per_second=0)
        program.run(first(optimizer()))
        for _ in range(FIRST_ROOTS - 1):
            (begun,) = program.run(first(module()))
            program.traces.end_closed()
            (rest,) = program.run(first(optimizer()))
            assert begun is not None
            assert rest is not None

    def test_the_sampler_is_not_asked_for_what_the_limit_refuses(self) -> None:
        class Counting(StaticSampler):
            asked = 0

            def should_sample(self, *arguments: Any, **keywords: Any) -> SamplingResult:
                self.asked += 1
                return super().should_sample(*arguments, **keywords)

        sampler = Counting(Decision.RECORD_AND_SAMPLE)
        traces = Program(roots_per_second=0, sampler=sampler).run(
            *[evaluation()] * (FIRST_ROOTS + 2)
        )
        assert [trace is not None for trace in traces] == [True] * FIRST_ROOTS + [False] * 2
        assert sampler.asked == FIRST_ROOTS


MANY = 5000
"""More threads than are remembered."""


def run_jobs(program: Program, first_thread: int, jobs: int, **more: Any) -> list[int]:
    """Call a module in each of so many new threads, in one batch; the calls."""
    tracks = [MAIN_THREAD._replace(number=first_thread + job) for job in range(jobs)]
    events = [program.event({**first(module()), **more}, track) for track in tracks]
    rows = [row for _, rows in events for row in rows]
    program.take(make_batch(rows, [opened for opened, _ in events]))
    return [opened["event_id"] for opened, _ in events]


def test_threads_that_a_flush_left_in_a_training_step_are_forgotten_when_they_are_many() -> None:
    """A program may train in a thread of its own per job, and flush at the end of each."""
    program = Program()
    for first_thread in (10, 10 + MANY):
        run_jobs(program, first_thread, MANY)
        program.traces.end_closed()
    program.run(module())
    # That it keeps no thread for ever has no sign but this and its memory.
    assert len(program.traces._cut) < MANY  # noqa: SLF001


def test_threads_in_which_a_range_is_open_are_not_forgotten_for_many_others() -> None:
    """A main thread may have one open while it launches a thread per job."""
    program = Program()
    calls = run_jobs(program, 10, 20, stays_open=True)
    traces = [program.traces.find(call) for call in calls]
    assert None not in traces
    for first_thread in range(100, 100 + MANY, 10):
        run_jobs(program, first_thread, 10)
    assert [program.traces.find(call) for call in calls] == traces
    assert not {*traces} & {*taken_from(program.traces)}


class TestWorkersTraces:
    """Those of less than a millisecond continue with the next one of their thread."""

    @staticmethod
    def collate(lasts_us: int, after_ms: int = 200) -> dict[str, Any]:
        """What a worker runs for a batch, after others are over."""
        return {**op("aten::stack"), "lasts_ns": 1000 * lasts_us, "after_ns": after_ms * MS}

    @pytest.fixture
    def worker(self) -> Program:
        return Program(worker=WorkerProcess("DataLoader worker 0", single_caller=False))

    @pytest.mark.parametrize("one_batch", [True, False])
    def test_short_ones_are_sent_together(self, worker: Program, one_batch: bool) -> None:
        traces = worker.run(*[self.collate(300)] * 6, one_batch=one_batch)
        roots = [trace.context.span_id for trace in traces if trace is not None]
        assert roots == [roots[0]] * 4 + [roots[4]] * 2
        (sent,) = taken_from(worker.traces)
        assert sent.context.span_id == roots[0]
        assert sent.start_ns == BASE_NS + 200 * MS
        worker.traces.end_closed()
        (sent,) = taken_from(worker.traces)
        assert sent.context.span_id == roots[4]

    def test_long_ones_are_sent_by_themselves(self, worker: Program) -> None:
        worker.run(*[self.collate(1000)] * 3)
        assert len(taken_from(worker.traces)) == 2
        worker.traces.close_idle(worker.now_ns + NS_PER_SECOND + 1)
        assert len(taken_from(worker.traces)) == 1

    def test_a_short_one_waits_until_a_flush_or_the_end(self, worker: Program) -> None:
        worker.run(self.collate(300))
        worker.traces.close_idle(worker.now_ns + NS_PER_SECOND + 1)
        assert taken_from(worker.traces) == []
        worker.traces.close_all()
        assert len(taken_from(worker.traces)) == 1

    def test_one_of_another_name_or_long_ago_is_sent(self, worker: Program) -> None:
        worker.run(self.collate(300), {**evaluation(), "lasts_ns": 1000, "after_ns": 200 * MS})
        worker.traces.end_closed()
        assert worker.names() == ["DataLoader worker 0", "module call: Net"]
        worker.run(self.collate(300), self.collate(300, after_ms=11_000))
        assert len(taken_from(worker.traces)) == 1

    def test_other_processes_send_short_ones(self) -> None:
        program = Program()
        program.run(*[self.collate(300)] * 3)
        assert len(taken_from(program.traces)) == 2
