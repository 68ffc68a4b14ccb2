"""Ranges that are open for long as spans: a small trace for each hang, and later the ranges'
own, complete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler

from helpers import source_calls
from helpers.example_counts import examples
from helpers.recording_helpers import Clock, reset, run_threads, workers_of
from helpers.step_program import Program
from helpers.timeouts import PATIENCE_S
from otel_recfn.model.counters import OUTCOMES
from otel_recfn.recording.recorder import Recorder
from otel_recfn.session import captures
from otel_recfn.sinks.spans import open_traces
from otel_recfn.sinks.spans.budgets import EVERY_RANGE, Volume

pytestmark = pytest.mark.one_python


class Looked(Program):
    """A program where it is looked when the test says so."""

    def __init__(
        self, recorder: Recorder, clock: Clock, sampler: Sampler = ALWAYS_ON, **spans: Any
    ) -> None:
        self.clock = clock
        super().__init__(recorder, sampler, 1e-9, roots_per_second=None, **spans)

    def look(self) -> list[list[str]]:
        """The traces of hangs so far, in their order: names from the root on, parents first."""
        self.clock.now_s += 1
        run_threads([self.flush])  # where it attaches nothing to the program's context
        return [[span.name for span in spans] for spans in self.hangs()]

    def flush(self) -> None:
        assert self.session.flush(self.capture, PATIENCE_S)

    def hangs(self) -> list[list[ReadableSpan]]:
        roots = [
            span.context.trace_id for span in self.sent() if span.name == open_traces.OPEN_FOR_LONG
        ]
        return [
            [span for span in self.sent() if span.context.trace_id == trace_id]
            for trace_id in roots
        ]

    def end(self) -> list[ReadableSpan]:
        """What was sent beside hangs, when all has ended. The laws hold."""
        self.session.stop(self.capture, PATIENCE_S)
        spans = self.sent()
        counts = self.spans_sink.counters()
        ids = Counter((span.context.trace_id, span.context.span_id) for span in spans)
        assert max(ids.values(), default=1) == 1, "a span was sent twice"
        assert [
            span.name
            for span in spans
            if span.parent and (span.parent.trace_id, span.parent.span_id) not in ids
        ] == []
        assert counts["recorded"] + counts["added"] == sum(
            counts[outcome] for outcome in OUTCOMES if outcome in counts
        )
        assert counts["recorded"] == len(list(self.rows.events()))
        hung = {span.context.trace_id for spans in self.hangs() for span in spans}
        return [span for span in spans if span.context.trace_id not in hung]


@pytest.fixture
def make(recorder: Recorder, clock: Clock) -> Iterator[Callable[..., Looked]]:
    made: list[Looked] = []

    def make(**keywords: Any) -> Looked:
        made.append(Looked(recorder, clock, **keywords))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def program(make: Callable[..., Looked]) -> Looked:
    return make()


def test_a_hang_below_a_span_is_a_trace_with_a_link_to_it(program: Looked) -> None:
    with (
        program.tracer.start_as_current_span("request") as request,
        program.record_function("outer"),
        program.record_function("inner"),
    ):
        assert program.look() == [["open for long", "outer", "inner"]]
        [(root, outer, inner)] = program.hangs()
        assert program.look() == [["open for long", "outer", "inner"]], "a range is told once"
    around = request.get_span_context()
    assert (root.parent, [link.context.span_id for link in root.links]) == (None, [around.span_id])
    assert root.context.trace_id != around.trace_id == root.links[0].context.trace_id
    assert (outer.parent.span_id, inner.parent.span_id) == (
        root.context.span_id,
        outer.context.span_id,
    )
    assert [(span.attributes or {}).get("recfn.partial") for span in (root, outer, inner)] == [
        None,
        True,
        True,
    ]
    assert root.attributes["recfn.root"] is True
    assert root.attributes["thread.name"] == "MainThread"
    assert (
        root.start_time
        == outer.start_time
        <= inner.start_time
        < inner.end_time
        < outer.end_time
        == root.end_time
    )
    complete = {span.name: span for span in program.end()}
    for partial in (outer, inner):
        own = complete[partial.name]
        assert own.attributes["recfn.event_id"] == partial.attributes["recfn.event_id"]
        assert "recfn.partial" not in own.attributes
        assert own.context.trace_id == around.trace_id
        assert own.end_time >= partial.end_time
    assert complete["outer"].parent.span_id == around.span_id
    assert program.spans_sink.counters()["recorded"] == 2, "a range counts once"


def test_a_hang_in_a_step_shows_the_step(program: Looked) -> None:
    with program.step("train", 7), program.record_function("forward"):
        assert program.look() == [["open for long", "train", "forward"]]
        [(root, train, _)] = program.hangs()
        assert train.attributes["recfn.step.number"] == 7
    spans = {span.name: span for span in program.end()}
    assert spans.keys() == {"forward", "train"}
    assert root.links[0].context.span_id == spans["train"].context.span_id


def test_what_is_not_sampled_or_suppressed_is_not_told(make: Callable[..., Looked]) -> None:
    program = make(sampler=ParentBased(ALWAYS_ON))
    remote = trace.NonRecordingSpan(trace.SpanContext(1, 2, True, trace.TraceFlags(0)))
    with trace.use_span(remote), program.record_function("unsampled"):
        assert program.look() == []
    with suppress_instrumentation(), program.record_function("suppressed"):
        assert program.look() == []
    assert program.end() == []


@pytest.mark.parametrize("looks", [True, False])
def test_the_hook_sees_partial_spans_and_what_it_drops_there_is_dropped_there_alone(
    make: Callable[..., Looked], looks: bool
) -> None:
    seen: list[tuple[str, bool]] = []

    def hook(row: Any, attributes: dict[str, Any]) -> Any:
        seen.append((row.name, "recfn.partial" in attributes))
        attributes["hooked"] = True
        return (
            False
            if row.name == "leaf" or ("recfn.partial" in attributes and row.name == "middle")
            else row.name.upper()
        )

    program = make(hook=hook)
    begin, end = source_calls.begin, source_calls.end
    with program.tracer.start_as_current_span("request"):
        ranges = [begin(name, 7, 1) for name in ("outer", "middle", "inner", "leaf")]
        if looks:
            assert program.look() == [["open for long", "OUTER", "INNER"]]
            [(_, outer, inner)] = program.hangs()
            assert inner.parent.span_id == outer.context.span_id
            assert inner.attributes["hooked"]
        for each in reversed(ranges):
            end(each)
    spans = {span.name: span for span in program.end()}
    assert spans.keys() == {"request", "OUTER", "MIDDLE", "INNER"}
    assert spans["INNER"].parent.span_id == spans["MIDDLE"].context.span_id
    expected = [(name, False) for name in ("inner", "leaf", "middle", "outer")]
    assert sorted(seen) == sorted(expected + [(name, True) for name, _ in expected if looks])


@pytest.mark.parametrize(
    "volume", [EVERY_RANGE, Volume(20, 10, 100)], ids=["every range", "folded"]
)
def test_deep_hangs_are_bounded(
    make: Callable[..., Looked], volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_traces, "MAX_OPEN", 20)  # a test with 1,000 would take long
    program = make(volume=volume)
    with program.tracer.start_as_current_span("request"):
        ranges = [source_calls.begin(f"deep {number}", 7, 1) for number in range(100)]
        assert program.look() == [["open for long", *[f"deep {number}" for number in range(20)]]]
        assert program.hangs()[0][0].attributes["recfn.folded.count"] == 80
        assert len(program.look()) == 1
        for each in reversed(ranges):
            source_calls.end(each)
    program.end()


@pytest.mark.parametrize("volume", [EVERY_RANGE, Volume(1)], ids=["every range", "folded"])
def test_a_span_in_a_range_that_is_open_at_the_end_has_its_parent(
    make: Callable[..., Looked], volume: Volume
) -> None:
    program = make(volume=volume)
    outer = program.record_function("outer")
    inner = program.record_function("inner")
    outer.__enter__()
    inner.__enter__()
    with program.tracer.start_as_current_span("span"):
        pass
    assert "span" in [span.name for span in program.end()]
    inner.__exit__(None, None, None)
    outer.__exit__(None, None, None)


class Moves:
    """What threads do, one after the other: begin a range, end their innermost one or any
    asynchronous one, enter a span.
    """

    begin, end, begin_async, end_async, look, flush, enter, leave = range(8)


PROGRAMS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(range(8))), max_size=60)


@pytest.mark.parametrize("volume", [EVERY_RANGE, Volume(3, 2, 10)], ids=["every range", "folded"])
@given(moves=PROGRAMS)
@examples(40)
def test_spans_of_open_ranges_with_ends_in_any_order(
    request: pytest.FixtureRequest, recorder: Any, moves: Any, volume: Any
) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch, workers_of(3) as workers:
        patch.setattr(captures, "time", clock)
        reset(recorder)
        program = Looked(recorder, clock, volume=volume)
        try:
            _play(program, workers, moves)
            ids = {
                (span.attributes or {})["recfn.event_id"]
                for spans in program.hangs()
                for span in spans[1:]
            }
            program.end()
            assert ids <= {event.event_id for event in program.rows.events()}
        finally:
            program.close()


def _play(program: Looked, workers: list[Any], moves: list[tuple[int, int]]) -> None:
    stacks: list[list[Any]] = [[], [], []]
    crossing: list[int] = []
    for thread, move in moves:
        call = workers[thread].call
        stack = stacks[thread]
        if move == Moves.begin:
            stack.append(call(source_calls.begin, f"range {len(stack)}", 7, 1))
        elif move == Moves.begin_async:
            crossing.append(call(source_calls.begin, "async", 7, 1, flags=1))
        elif move == Moves.end_async and crossing:
            call(source_calls.end, crossing.pop())
        elif move == Moves.look:
            program.look()
        elif move == Moves.flush:
            program.flush()
        elif move == Moves.enter:
            span = program.tracer.start_as_current_span("span")
            call(span.__enter__)
            stack.append(span)
        elif move in (Moves.end, Moves.leave) and stack:
            top = stack.pop()
            if isinstance(top, int):
                call(source_calls.end, top)
            else:
                call(top.__exit__, None, None, None)
    for thread, stack in enumerate(stacks):
        while stack:
            top = stack.pop()
            if not isinstance(top, int):
                workers[thread].call(top.__exit__, None, None, None)
