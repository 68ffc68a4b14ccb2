"""Training steps that nobody marks: where they begin and end, and that traces of ours are the
same ones.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider

from helpers import source_calls
from helpers.recording_helpers import Capture, Worker, reset
from helpers.timeouts import PATIENCE_S, wait_until
from otel_recfn.model.batch import Batch, TrainingStep
from otel_recfn.model.events import MAX_TRACE_RANGES, EventFlag, EventSource, RecordScope
from otel_recfn.recording import recorder as recording
from otel_recfn.recording.recorder import Recorder
from otel_recfn.sinks.spans import step_traces
from otel_recfn.sinks.spans.process_context import ProcessContext
from otel_recfn.sinks.spans.program_spans import ProgramSpans
from otel_recfn.sinks.spans.provider import ProviderResolver
from otel_recfn.sinks.spans.step_trace import StepTrace
from otel_recfn.sinks.spans.step_traces import StepTraces

LONG_NS = int(PATIENCE_S * 1e9)
TRAINING = "training step"


class Range(NamedTuple):
    """A range that a program runs, and those inside it."""

    name: str
    source: EventSource = EventSource.TORCH
    scope: RecordScope = RecordScope.USER_SCOPE
    flags: int = 0
    within: tuple[Range, ...] = ()


OP = Range("aten::add", scope=RecordScope.FUNCTION)
CALL, EVALUATION = [
    Range("nn.Module: Net_0", EventSource.MODULE, flags=flags)
    for flags in (0, EventFlag.EVALUATION)
]
OPTIMIZER = Range("Optimizer.step#SGD.step")
ZERO_GRAD = Range("Optimizer.zero_grad#SGD.zero_grad")


def block(
    *within: Range, name: str = "block", source: EventSource = EventSource.RECORD_FUNCTION
) -> Range:
    return Range(name, source, within=within)


def run_range(one: Range, asks: list[int] | None = None) -> int:
    """Run a range. The first range of its trace, as the program hears of it inside, is added to
    ``asks``.
    """
    event_id = source_calls.begin(one.name, one.scope, one.source, flags=one.flags)
    for inner in one.within:
        run_range(inner)
    if asks is not None:
        asks.append(step_traces.trace_start(event_id).first)
    source_calls.end(event_id)
    return event_id


class Program:
    """Runs ranges, drains them, and has traces of them."""

    def __init__(self, recorder: Recorder) -> None:
        reset(recorder)
        self.capture = Capture(recorder)
        self.steps: list[TrainingStep] = []
        self.finished: list[StepTrace] = []
        self.traces = StepTraces(None, ProcessContext(ProgramSpans()))
        target = ProviderResolver(TracerProvider(shutdown_on_exit=False)).resolve()
        assert target is not None
        self._target = target

    def run(self, *ranges: Range, drains_each: bool = False) -> list[StepTrace | None]:
        """The trace of each."""
        ids = []
        for one in ranges:
            ids.append(run_range(one))
            if drains_each:
                self.drain()
        self.drain()
        return [self.traces.find(event_id) for event_id in ids]

    def drain(self, **how: bool) -> Batch:
        batch = self.capture.recorder.drain(**how)
        self.traces.advance(batch, self._target)
        self.steps += batch.steps
        return batch

    def end(self) -> None:
        self.capture.recorder.stop()
        self.drain(close_open=True)
        self.traces.close_all()
        self.finished += self.traces.take_finished()


@pytest.fixture(autouse=True)
def whatever_the_machine_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it pauses, no step and no trace ends by that."""
    for module in (recording, step_traces):
        monkeypatch.setattr(module, "IDLE_NS", LONG_NS)
        monkeypatch.setattr(module, "SHORT_IDLE_NS", LONG_NS)


@pytest.fixture
def program(recorder: Recorder) -> Program:
    return Program(recorder)


def grouping(traces: list[StepTrace | None]) -> str:
    """A letter per range, the same for those in one trace."""
    order = list(dict.fromkeys(map(id, traces)))
    return "".join("abcdefghijklm"[order.index(id(trace))] for trace in traces)


STEP = [ZERO_GRAD, CALL, OP, OPTIMIZER]


@pytest.mark.parametrize("drains_each", [False, True])
class TestBoundaries:
    """In one drain, or one per range: the same."""

    def test_steps(self, program: Program, drains_each: bool) -> None:
        assert grouping(program.run(*STEP, *STEP, OP, drains_each=drains_each)) == "aaaabbbbc"
        program.end()
        assert [(trace.name, trace.number) for trace in program.finished] == [
            (TRAINING, 0),
            (TRAINING, 1),
            (TRAINING, -1),
        ]

    def test_the_first_step_begins_with_the_first_call_in_training(
        self, program: Program, drains_each: bool
    ) -> None:
        traces = program.run(OP, CALL, OP, CALL, OP, OPTIMIZER, OP, drains_each=drains_each)
        assert grouping(traces) == "abbbbbc"
        program.end()
        assert [(trace.name, trace.number) for trace in program.finished][1:] == [
            (TRAINING, 0),
            (TRAINING, -1),
        ]

    def test_optimizers_in_a_row_are_one_step(self, program: Program, drains_each: bool) -> None:
        scaled = Range("Optimizer.step#GradScaler.step", within=(OPTIMIZER,))
        traces = program.run(CALL, OPTIMIZER, scaled, CALL, OPTIMIZER, drains_each=drains_each)
        assert grouping(traces) == "aaabb"
        program.end()
        assert [step.number for step in program.steps] == [0, 1]

    def test_what_runs_between_optimizers_is_in_their_step(
        self, program: Program, drains_each: bool
    ) -> None:
        """Gradients are clipped, say, or a GradScaler unscales them; the step ends with the last
        optimizer before a module is called.
        """
        iteration = [CALL, OPTIMIZER, OP, block(OP), ZERO_GRAD, block(OPTIMIZER), OP]
        traces = program.run(*iteration, *iteration, EVALUATION, drains_each=drains_each)
        program.end()
        assert [step.number for step in program.steps] == [0, 1]
        calls = [traces[place] for place in (0, 7)]
        optimizers = [traces[place] for place in (5, 12)]
        for step, call, optimizer in zip(program.steps, calls, optimizers, strict=True):
            assert program.traces.find(step.last) is optimizer
            assert call is not None
            assert call.number == step.number
        found = grouping(traces), [trace.number for trace in program.finished]
        if drains_each:  # one that comes between has to say where a range belongs
            assert found == ("aabbbbc" + "ccdddde" + "f", [0, 0, 1, 1, -1, -1])
        else:
            assert found == ("aaaaaab" + "bbbbbbc" + "d", [0, 1, -1, -1])

    def test_optimizers_of_a_thread_that_does_nothing_else_are_a_step_each(
        self, program: Program, drains_each: bool
    ) -> None:
        assert grouping(program.run(*[OPTIMIZER] * 3, drains_each=drains_each)) == "abc"
        program.end()
        assert [step.number for step in program.steps] == [0, 1, 2]

    def test_without_modules_each_optimizer_that_follows_others_ends_a_step(
        self, program: Program, drains_each: bool
    ) -> None:
        iteration = [OP, OPTIMIZER, OPTIMIZER]
        assert grouping(program.run(*iteration * 2, drains_each=drains_each)) == "abbccc"
        program.end()
        assert [step.number for step in program.steps] == [0, 1]

    def test_optimizers_that_call_the_modules_are_a_step_each(
        self, program: Program, drains_each: bool
    ) -> None:
        with_closure = Range("Optimizer.step#LBFGS.step", within=(ZERO_GRAD, CALL, OP))
        traces = program.run(
            with_closure, with_closure, OP, with_closure, OPTIMIZER, drains_each=drains_each
        )
        assert grouping(traces) == "abccd"
        program.end()
        assert [step.number for step in program.steps] == [0, 1, 2, 3]

    def test_evaluation_is_no_part_of_a_step(self, program: Program, drains_each: bool) -> None:
        validation = [OP, EVALUATION, OP]
        traces = program.run(
            *STEP, *validation, *validation, *STEP, *validation, drains_each=drains_each
        )
        # What comes after a step may be the next one's data.
        assert grouping(traces) == "aaaabcccddeeeefgg"
        program.end()
        named = [(trace.name, trace.number) for trace in program.finished]
        call = ("module call: Net", -1)
        unfinished = (TRAINING, -1)
        assert named == [(TRAINING, 0), unfinished, call, call, (TRAINING, 1), unfinished, call]

    def test_evaluation_in_a_block_is_no_part_of_a_step(
        self, program: Program, drains_each: bool
    ) -> None:
        traces = program.run(*STEP, block(EVALUATION), OP, *STEP, drains_each=drains_each)
        assert grouping(traces) == "aaaabbcccc"

    def test_a_step_in_a_block_is_the_block(self, program: Program, drains_each: bool) -> None:
        traces = program.run(block(*STEP), block(*STEP), drains_each=drains_each)
        assert grouping(traces) == "ab"
        program.end()
        assert [trace.number for trace in program.finished] == [0, 1]

    def test_steps_that_the_program_marks_are_left_alone(
        self, program: Program, drains_each: bool
    ) -> None:
        marked = [block(*STEP, name="train", source=EventSource.STEP)]
        marked += [block(*marked)]
        program.run(*marked, drains_each=drains_each)
        program.end()
        assert program.steps == []
        assert {trace.number for trace in program.finished} == {-1}

    def test_steps_that_a_profiler_marks_say_so(self, program: Program, drains_each: bool) -> None:
        program.run(
            block(*STEP, name="ProfilerStep#3"),
            block(*STEP, name="ProfilerStep#4"),
            *STEP,
            drains_each=drains_each,
        )
        program.end()
        assert [(step.number, step.is_marked) for step in program.steps] == [
            (0, True),
            (1, True),
            (2, False),
        ]

    def test_after_a_rest_another_step_begins(
        self, program: Program, drains_each: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program.run(*STEP, OP, drains_each=drains_each)
        for module in (recording, step_traces):
            monkeypatch.setattr(module, "IDLE_NS", 0)
        first, second = program.run(OP, drains_each=drains_each) + program.run(
            OPTIMIZER, drains_each=drains_each
        )
        assert first is not second
        program.end()
        assert [(step.number, step.first == step.last) for step in program.steps] == [
            (0, False),
            (1, True),
        ]


def test_a_step_is_over_once_its_thread_rests(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.run(*STEP)
    assert program.steps == []
    monkeypatch.setattr(recording, "IDLE_NS", 0)
    program.drain()
    assert [step.number for step in program.steps] == [0]


@pytest.mark.parametrize(
    "ranges",
    [
        STEP,
        [*STEP, *STEP],
        [*STEP, OPTIMIZER],
        [*STEP, OP],
        [*STEP, OP, OPTIMIZER],
        [ZERO_GRAD, CALL, OP],
        [EVALUATION, block(*STEP)],
    ],
)
def test_a_step_that_goes_on_is_copied_as_it_would_end_now(
    program: Program, ranges: list[Range]
) -> None:
    for one in ranges:
        run_range(one)
        program.drain(open_ranges=True)
    copies = program.drain(open_ranges=True).unfinished_steps
    last = program.drain(end_steps=True, open_ranges=True)
    assert copies == last.steps
    assert last.unfinished_steps == []


def test_a_step_around_an_open_range_is_copied_around_its_copy(program: Program) -> None:
    opened = source_calls.begin("block", RecordScope.USER_SCOPE, EventSource.RECORD_FUNCTION)
    for one in STEP:
        run_range(one)
    batch = program.drain(open_ranges=True)
    [step] = batch.unfinished_steps
    assert (step.first, step.last) == (opened, opened)
    assert step.end_ns > batch.end_ns[batch.event_id == opened]
    source_calls.end(opened)


def test_a_step_is_over_once_its_thread_has_ended(program: Program) -> None:
    worker = Worker()
    worker.call(run_range, OPTIMIZER)
    program.drain()
    worker.stop()

    def is_over() -> bool:
        program.drain()
        return program.steps != []

    wait_until(is_over)  # a thread that was joined may still be ending
    assert [step.number for step in program.steps] == [0]


def test_threads_count_their_own_steps(program: Program, workers: list[Worker]) -> None:
    for worker in workers[:2]:
        for one in STEP * 2:
            worker.call(run_range, one)
    program.run(*STEP)
    program.end()
    assert sorted(step.number for step in program.steps) == [0, 0, 0, 1, 1]


def test_what_a_flush_cuts_is_no_part_of_the_step(program: Program) -> None:
    program.run(*STEP[:3])
    program.drain(end_steps=True)
    program.traces.end_closed()
    (rest,) = program.run(OPTIMIZER)
    program.drain(end_steps=True)
    assert rest is not None
    assert [(step.number, step.first) for step in program.steps] == [
        (0, step.last) for step in program.steps
    ]
    assert (rest.name, rest.number) == (TRAINING, 0)


def test_each_recording_counts_from_0(recorder: Recorder) -> None:
    for _ in range(2):
        program = Program(recorder)
        program.run(*STEP, *STEP)
        program.end()
        assert [step.number for step in program.steps] == [0, 1]


def test_steps_in_traced_calls_are_found(program: Program) -> None:
    """Python calls lie around all that a program does, and end last."""
    caller = source_calls.begin("main", RecordScope.FUNCTION, EventSource.PYTHON_CALL)
    program.run(*STEP, *STEP, OP)
    source_calls.end(caller)
    program.end()
    assert [step.number for step in program.steps] == [0, 1]


WORK = [
    *(OP, CALL, EVALUATION, OPTIMIZER, ZERO_GRAD),
    *(block(CALL), block(OP, OPTIMIZER), block(EVALUATION), block(EVALUATION, CALL)),
    block(*STEP, name="train", source=EventSource.STEP),
]


@pytest.fixture(params=[LONG_NS, 0], ids=["without pauses", "after pauses"])
def short_rest_ns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 0, there is a pause between any two ranges."""
    for module in (recording, step_traces):
        monkeypatch.setattr(module, "SHORT_IDLE_NS", request.param)


@pytest.mark.parametrize("drains_each", [False, True])
def test_the_program_hears_of_the_trace_that_the_sink_has(
    program: Program, drains_each: bool
) -> None:
    asks: list[int] = []
    ids = []
    for one in [OP, *STEP, *STEP, OP, EVALUATION, OP, *STEP, block(CALL), EVALUATION]:
        ids.append(run_range(one, asks))
        if drains_each:
            program.drain()
    program.drain()
    found = [program.traces.find(event_id) for event_id in ids]
    assert asks == [trace.first if trace is not None else 0 for trace in found]
    assert grouping(found) == "abbbbccccdeeffffgh"
    # All rows are there, whoever read them.
    assert program.capture.counters().lost_in_drain == 0


def test_a_long_trace_goes_on_as_another_one_for_the_program_too(program: Program) -> None:
    max_ranges = MAX_TRACE_RANGES
    asks: list[int] = []
    ids = []
    for number in range(max_ranges + 2):
        ids.append(run_range(OP, asks if number in (max_ranges - 1, max_ranges) else None))
        if number % 10_000 == 0:
            program.drain()
    program.drain()
    assert asks == [ids[0], ids[max_ranges]]
    trace = program.traces.find(ids[-1])
    assert trace is not None
    assert trace.first == ids[max_ranges]


def test_the_program_hears_of_the_trace_of_a_range_of_another_thread(
    program: Program, workers: list[Worker]
) -> None:
    begin = (CALL.name, CALL.scope, CALL.source)
    workers[0].call(run_range, OP)
    event_id = workers[0].call(source_calls.begin, *begin)
    workers[1].call(run_range, OP)
    assert workers[1].call(step_traces.trace_start, event_id).first == event_id
    workers[0].call(source_calls.end, event_id)
    start = step_traces.trace_start(event_id)
    assert (start.first, start.name) == (event_id, ""), "it has ended"
    program.end()


@pytest.mark.usefixtures("short_rest_ns")
@given(
    st.lists(st.sampled_from(WORK), min_size=1, max_size=20),
    st.sets(st.integers(0, 19)),
    st.sets(st.integers(0, 19)),
)
@example([OP, EVALUATION, block(EVALUATION), EVALUATION, block(OP, OPTIMIZER)], {2}, {1, 3})
@example([OP, OP, *[block(EVALUATION), CALL] * 2, OPTIMIZER], {1}, {4})
@settings(
    deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_traces_are_the_steps_whatever_runs_and_whenever_it_is_drained(
    recorder: Recorder, work: list[Range], drains: set[int], asks: set[int]
) -> None:
    program = Program(recorder)
    ids: list[int] = []
    heard: list[int] = []
    for place, one in enumerate(work):
        if place in drains:
            program.drain()
        ids.append(run_range(one, heard if place in asks else None))
    program.drain()
    traces = [program.traces.find(ids[place]) for place in sorted(asks) if place < len(work)]
    assert heard == [trace.first for trace in traces if trace is not None]
    program.end()
    numbered: dict[int, list[StepTrace]] = {}
    for trace in program.finished:
        if trace.number >= 0:
            numbered.setdefault(trace.number, []).append(trace)
    # Two traces are one step if a drain came before its last optimizer's step.
    assert sorted(
        (number, min(one.start_ns for one in parts), max(one.end_ns for one in parts))
        for number, parts in numbered.items()
    ) == [(step.number, step.start_ns, step.end_ns) for step in program.steps]
    if not drains and not asks:
        assert max(map(len, numbered.values()), default=1) == 1
    assert bool(program.steps) == any(
        one is OPTIMIZER or (OPTIMIZER in one.within and one.source != EventSource.STEP)
        for one in work
    )
