"""``step``: a range with a number, and a span of the program's where there is a provider."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler, SamplingResult

from helpers.cpu_work import work
from helpers.running_capture import Running
from helpers.step_program import Program
from helpers.timeouts import PATIENCE_S
from otel_recfn import batch, record_function
from otel_recfn.batches.selection import Selected
from otel_recfn.errors import SettingError
from otel_recfn.model.batch import Event
from otel_recfn.model.events import EventFlag, EventSource
from otel_recfn.recording.recorder import Recorder
from otel_recfn.session.session import Session
from otel_recfn.sinks.spans.budgets import Volume
from otel_recfn.sources.steps import step
from otel_recfn.support.code_names import called_code


@pytest.fixture
def alone(recorder: Recorder) -> Iterator[Running]:
    """A capture that makes no spans."""
    session = Session(recorder)
    yield Running(session, Selected())
    session.at_exit()


def named(running: Running) -> dict[str, Event]:
    return {event.name: event for event in running.stop().sink.events()}


def test_a_step_is_a_range_with_a_number(recorder: Recorder, alone: Running) -> None:
    with record_function("epoch"), step("train", 3), step(), record_function("in"):
        pass
    rows = named(alone)
    assert (rows["train"].step_number, rows["train"].source) == (3, EventSource.STEP)
    assert (rows["epoch"].step_number, rows["in"].step_number) == (-1, -1)
    assert rows["in"].parent == rows["step"].event_id
    assert rows["step"].parent == rows["train"].event_id
    assert rows["train"].parent == rows["epoch"].event_id


def test_steps_without_a_number_are_counted_by_name(alone: Running) -> None:
    first = f"first {time.time_ns()}"
    second = f"second {time.time_ns()}"
    for name in (first, first, second, first):
        with step(name):
            pass
    rows = alone.stop().sink.events()
    assert [(row.name, row.step_number) for row in rows] == [
        (first, 0),
        (first, 1),
        (second, 0),
        (first, 2),
    ]


def test_a_step_is_a_child_of_the_current_span_or_range(program: Program) -> None:
    with program.tracer.start_as_current_span("epoch"):
        with program.step("train", 0), program.record_function("mm"):
            pass
        with (
            program.record_function("validate"),
            program.step("evaluate", 0),
            program.record_function("mm"),
        ):
            pass
    assert program.paths() == [
        "epoch",
        "epoch/train:0",
        "epoch/train:0/mm",
        "epoch/validate",
        "epoch/validate/evaluate:0",
        "epoch/validate/evaluate:0/mm",
    ]


def test_a_step_in_a_step_has_one_parent_in_spans_rows_and_another_captures_rows(
    program: Program,
) -> None:
    another = Running(program.session, Selected())
    again = program.step("again", 1)
    with program.step("train", 0):
        with program.step("directly", 0), again, again, program.record_function("mm"):
            pass
        with program.record_function("range"), program.step("in a range", 0):
            pass
        with program.tracer.start_as_current_span("span"), program.step("in a span", 0):
            pass
    others = list(another.stop().sink.events())
    spans = {span.context.span_id: span for span in program.spans()}
    span_attributes = {
        (span.attributes or {}).get("recfn.event_id", 0): spans[span.parent.span_id]
        for span in spans.values()
        if span.parent is not None
    }
    for rows in (list(program.rows.events()), others):
        by_id = {row.event_id: row for row in rows}
        assert len(by_id) == 8
        for row in [row for row in rows if row.parent]:
            around = by_id[row.parent].name, span_attributes[row.event_id].name
            same = around[0], around[0]
            assert around == (("train", "span") if row.name == "in a span" else same)


def test_every_step_without_a_span_around_is_a_trace_of_its_own_however_many_there_are(
    program: Program,
) -> None:
    for number in range(150):
        with program.step("decode", number), program.record_function("mm"):
            pass
    spans = program.spans()
    assert len({span.context.trace_id for span in spans}) == 150
    assert len(spans) == 300


LAUNCHER = f"00-{0xABC:032x}-{0xDEF:016x}-01"


def run_steps(program: Program) -> None:
    """Run a step in each way that one may begin outside of spans."""

    @program.step("decorated", 0)
    def decorated() -> None:
        pass

    def generated() -> Iterator[None]:
        with program.step("generated", 0):
            yield

    def run() -> None:
        with program.step("in a thread", 0):
            pass

    async def run_soon() -> None:
        async with program.step("in a task", 0):
            pass

    with program.step("block", 0), program.step("inside", 0):
        pass
    decorated()
    list(generated())
    asyncio.run(run_soon())
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def test_a_step_without_a_span_around_lies_in_the_launchers(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", LAUNCHER)
    monkeypatch.setenv("TRACESTATE", "vendor=1")
    run_steps(program)
    with program.tracer.start_as_current_span("request"), program.step("in a span", 0):
        pass
    program.stop()
    spans = {span.name: span for span in program.sent()}
    parents = {name: span.parent for name, span in spans.items() if span.parent is not None}
    assert parents.pop("inside") == spans["block"].context
    assert parents.pop("in a span") == spans["request"].context
    assert parents.keys() == {"block", "decorated", "generated", "in a task", "in a thread"}
    for name, parent in parents.items():
        assert (parent.trace_id, parent.span_id, parent.is_remote) == (0xABC, 0xDEF, True)
        assert spans[name].context.trace_id == 0xABC
        assert spans[name].context.trace_state.get("vendor") == "1"


@pytest.mark.parametrize("carried", ["", "nonsense", LAUNCHER.replace("abc", "000")])
def test_a_step_is_a_root_where_the_launcher_says_nothing(
    program: Program, monkeypatch: pytest.MonkeyPatch, carried: str
) -> None:
    monkeypatch.setenv("TRACEPARENT", carried)
    with program.step("train", 0):
        pass
    assert program.paths() == ["train:0"]


def test_a_step_in_a_launcher_that_is_not_sampled_has_no_spans(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", LAUNCHER.removesuffix("01") + "00")
    with program.step("train", 0), program.record_function("mm"):
        pass
    assert program.spans() == []


def test_steps_that_are_open_at_the_end_have_their_spans(
    program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    outer = program.step("epoch", 1)
    inner = program.step("train", 0)
    for one in (outer, inner):
        one.__enter__()
    with program.record_function("mm"):
        pass
    ended = {span.name: span for span in program.spans()}
    assert ended["mm"].parent.span_id == ended["train"].context.span_id  # type: ignore[union-attr]
    assert ended["train"].parent.span_id == ended["epoch"].context.span_id  # type: ignore[union-attr]
    assert [(ended[name].attributes or {})["recfn.partial"] for name in ("train", "epoch")] == [
        True,
        True,
    ]
    for one in (inner, outer):
        one.__exit__(None, None, None)
    assert len(program.sent()) == len(ended)
    assert caplog.text == "", "OpenTelemetry logs spans that are ended twice"


def test_a_step_that_is_not_sampled_has_no_spans(make_program: Callable[..., Program]) -> None:
    program = make_program(sampler=ALWAYS_OFF)
    with program.step("train", 0), program.record_function("mm"):
        pass
    assert program.paths() == []
    assert program.rows.events() != []


def test_a_step_is_the_current_span(program: Program) -> None:
    with program.step("train", 0):
        trace.get_current_span().set_attribute("loss", 0.5)
        with program.tracer.start_as_current_span("evaluate"), program.record_function("mm"):
            pass
    spans = {span.name: span for span in program.spans()}
    assert (spans["train"].attributes or {})["loss"] == 0.5
    assert spans["evaluate"].parent.span_id == spans["train"].context.span_id  # type: ignore[union-attr]
    rows = {row.name: row for row in program.rows.events()}
    assert (spans["train"].attributes or {})["recfn.event_id"] == rows["train"].event_id


def test_the_span_of_a_step_says_its_scope_and_thread_as_others_do(program: Program) -> None:
    def train() -> None:
        with program.step("train", 0), program.record_function("mm"):
            pass

    thread = threading.Thread(target=train, name="trainer")
    thread.start()
    thread.join()
    attributes = {span.name: dict(span.attributes or {}) for span in program.spans()}
    assert (attributes["train"]["recfn.scope"], attributes["train"]["thread.name"]) == (
        "USER_SCOPE",
        "trainer",
    )
    for name in ("recfn.scope", "recfn.thread_id", "thread.id", "thread.name"):
        assert attributes["train"][name] == attributes["mm"][name]


def test_a_step_may_have_a_name_that_no_utf8_holds(program: Program) -> None:
    """An exporter that can't encode one span's name loses the whole batch, the program's spans,
    too.
    """
    with program.step("odd \ud800", 0):
        pass
    assert program.paths() == ["odd \\ud800:0"]


def assert_same_times(program: Program) -> None:
    """Each step's span begins and ends in the same nanosecond as its range."""
    spans = {(span.attributes or {}).get("recfn.event_id"): span for span in program.spans()}
    steps = [row for row in program.rows.events() if row.source == EventSource.STEP]
    assert steps
    for row in steps:
        assert (spans[row.event_id].start_time, spans[row.event_id].end_time) == (
            row.start_ns,
            row.end_ns,
        )


def test_its_span_and_its_range_are_the_same_time(program: Program) -> None:
    async def decode(name: str) -> None:
        async with program.step(name):
            await asyncio.sleep(0)
            async with program.step("inner"):
                await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(decode("first"), decode("second"))

    ended_elsewhere = program.step("in two threads")
    ended_elsewhere.__enter__()
    thread = threading.Thread(target=ended_elsewhere.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    with program.tracer.start_as_current_span("epoch"), program.record_function("around"):
        for _ in range(3):
            with program.step("train"), program.step("inner"), program.record_function("mm"):
                pass
        with pytest.raises(ValueError, match="no"), program.step("fails"):
            raise ValueError("no")
    asyncio.run(main())
    assert_same_times(program)


class Draining(SpanProcessor):
    """Has the recorder drained while spans begin and end, by which its clock is read anew."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def _drain(self) -> None:
        for _ in range(3):
            assert self._program.session.flush(self._program.capture, PATIENCE_S)

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self._drain()

    def on_end(self, span: ReadableSpan) -> None:
        self._drain()


def test_they_are_so_when_drains_come_in_between(program: Program) -> None:
    program.provider.add_span_processor(Draining(program))
    for number in range(20):
        with program.step("train", number), program.record_function("mm"):
            pass
    assert_same_times(program)


@pytest.mark.parametrize(
    ("error", "kind"),
    [(ValueError(len("in the code")), "ValueError"), (SystemExit(3), "SystemExit")],
)
def test_a_failure_marks_the_span_and_the_range_without_source_code(
    program: Program, error: BaseException, kind: str
) -> None:
    def fail() -> None:
        with program.step("train", 0), program.record_function("mm"):
            raise error  # as source code has it

    with pytest.raises(type(error)):
        fail()
    spans = {span.name: span for span in program.spans()}
    rows = {row.name: row for row in program.rows.events()}
    for name in ("train", "mm"):
        span = spans[name]
        assert (span.status.status_code, span.status.description) == (
            trace.StatusCode.ERROR,
            rows[name].error,
        )
        assert (span.attributes or {})["error.type"] == kind
        (event,) = span.events
        attributes = dict(event.attributes or {})
        assert (event.name, event.timestamp) == ("exception", span.end_time)
        assert (attributes["exception.type"], attributes["exception.message"]) == (kind, str(error))
        assert "in fail" in attributes["exception.stacktrace"]
        assert "as source code has it" not in attributes["exception.stacktrace"]


@pytest.mark.parametrize("error", [SystemExit(0), GeneratorExit(), asyncio.CancelledError()])
def test_control_flow_is_no_failure(program: Program, error: BaseException) -> None:
    with pytest.raises(type(error)), program.step("train", 0):
        raise error
    (span,) = program.spans()
    assert (span.status.status_code, span.events) == (trace.StatusCode.UNSET, ())
    assert "error.type" not in (span.attributes or {})


def test_steps_of_tasks_that_take_turns(program: Program) -> None:
    shared = program.step("shared", 7)

    async def serve(number: int) -> None:
        async with program.step("decode", number):
            await asyncio.sleep(0)
            async with shared:
                await asyncio.sleep(0)
                async with program.record_function("mm"):
                    await asyncio.sleep(0)
            await asyncio.to_thread(in_thread)

    def in_thread() -> None:
        with program.record_function("in thread"):
            pass

    async def main() -> None:
        await asyncio.gather(*[serve(number) for number in range(3)])

    asyncio.run(main())
    each = ("", "/in thread", "/shared:7", "/shared:7/mm")
    assert program.paths() == sorted(
        f"decode:{number}{below}" for number in range(3) for below in each
    )
    rows = [row for row in program.rows.events() if row.name == "decode"]
    assert all(row.flags & EventFlag.ASYNC for row in rows)


def test_as_a_decorator(program: Program) -> None:
    @program.step("train", 5)
    def train(loss: float) -> float:
        with program.record_function("mm"):
            return loss

    @program.step("of coroutines", 6)
    async def decode() -> int:
        async with program.record_function("mm"):
            return 1

    assert (train(2.0), train(loss=3.0), asyncio.run(decode()), train.__name__) == (
        2.0,
        3.0,
        1,
        "train",
    )
    paths = [
        "of coroutines:6",
        "of coroutines:6/mm",
        "train:5",
        "train:5",
        "train:5/mm",
        "train:5/mm",
    ]
    assert program.paths() == paths


def test_what_no_step_can_be() -> None:
    with pytest.raises(TypeError, match="takes a name"):
        step(3)  # type: ignore[arg-type]
    for number in (-1, 1 << 63, 1.5, "3", True):
        with pytest.raises(SettingError, match="number="):
            step("train", number)  # type: ignore[arg-type]

    for other in (int, 3):
        with pytest.raises(TypeError, match="step decorates"):
            step("train")(other)  # type: ignore[type-var]


def generated() -> Iterator[int]:
    yield 1


async def generated_soon() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "name", "instead"),
    [
        (generated, "generated", "with"),
        (generated_soon, "generated_soon", "async with"),
        (functools.partial(generated), "partial", "with"),
    ],
)
def test_the_error_of_a_generator_says_what_to_do(function: Any, name: str, instead: str) -> None:
    with pytest.raises(TypeError) as refused:
        step("decode")(function)
    text = str(refused.value)
    assert name in text
    assert f" `{instead} step('decode'):`" in text
    assert "record_function('decode')" in text


def test_where_instrumentation_is_suppressed_a_step_has_no_span(program: Program) -> None:
    with suppress_instrumentation(), program.step("train", 0), program.record_function("mm"):
        pass
    assert program.paths() == []


class Raising(Sampler):
    def should_sample(self, *_args: Any, **_keywords: Any) -> SamplingResult:
        raise RuntimeError("no sample")

    def get_description(self) -> str:
        return "raises"


class RaisingProcessor(SpanProcessor):
    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("no end")


def test_what_the_program_gave_the_provider_may_raise(make_program: Callable[..., Program]) -> None:
    program = make_program(sampler=Raising())
    with program.step("train", 0), program.record_function("mm"):
        pass
    assert program.paths() == []
    program = make_program()
    program.provider.add_span_processor(RaisingProcessor())
    with program.step("train", 0), program.record_function("mm"):
        pass
    assert program.paths() == ["train:0", "train:0/mm"]


def decode() -> None:
    pass


async def decode_soon() -> None:
    pass


def test_a_decorated_function_is_named_by_the_steps_range_and_span(program: Program) -> None:
    program.step("decode")(decode)()
    asyncio.run(program.step("soon")(decode_soon)())
    with program.step("none"):
        pass
    spans = {span.name: dict(span.attributes or {}) for span in program.spans()}
    rows = {row.name: called_code(row.code) for row in program.rows.events()}
    for name, function in (("decode", decode), ("soon", decode_soon)):
        written = f"{__name__}.{function.__qualname__}", function.__code__.co_firstlineno
        assert (spans[name]["code.function.name"], spans[name]["code.line.number"]) == written
        assert (rows[name].function, rows[name].line) == written
    assert "code.function.name" not in spans["none"]


@pytest.mark.parametrize("is_batch", [False, True])
def test_the_longest_span_in_a_step_has_all_attributes_of_its_unit(
    make_program: Callable[..., Program], is_batch: bool
) -> None:
    program = make_program(volume=Volume(1))
    with batch([]) if is_batch else program.step("train"):
        with program.record_function("lookup"):
            waited_for = threading.Thread(target=work, args=[30_000_000])
            waited_for.start()
            waited_for.join(PATIENCE_S)
        for _ in range(3):
            with program.record_function("part"):
                work(1_000_000)
    [attributes] = [
        attributes
        for span in program.spans()
        if "recfn.unit." in str([*(attributes := dict(span.attributes or {}))])
    ]
    assert attributes.keys() >= {"recfn.unit.wait_time_ns", "recfn.unit.top"}
    first, last = attributes["recfn.unit.top"]
    assert (first.partition(":")[0], last.partition(":")[0]) == ("part", "lookup")
    assert ", waited " in last
