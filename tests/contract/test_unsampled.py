"""What lies in a span that is not sampled is not recorded where nobody has a use for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from helpers import source_calls
from helpers.forked_work import in_child
from helpers.running_capture import Running
from helpers.timeouts import PATIENCE_S
from otel_recfn import _native, record_function  # what sources/range_spans.py asks
from otel_recfn.batches.selection import Selected
from otel_recfn.model.batch import Event
from otel_recfn.model.events import EventSource
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES
from otel_recfn.session.capture import Capture
from otel_recfn.session.session import Session
from otel_recfn.sinks.in_memory import InMemorySink


class SampledSink(InMemorySink):
    """Has no use for what becomes no span, nor has a forked child's."""

    wants_unsampled = False


class SampledHere(SampledSink):
    """Has no use for it in this process; a forked child's has."""

    def after_fork_in_child(self) -> InMemorySink:
        return InMemorySink()


class SampledAlone:
    """A session whose only capture wants what becomes a span."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.session = Session(recorder)
        self.range = record_function
        self._before = recorder.counters()
        self.start()

    def start(self, sink: InMemorySink | None = None) -> None:
        self.sink = sink or SampledSink()
        self.capture = Capture(Selected(), [self.sink], buffer_bytes=DEFAULT_BUFFER_BYTES)
        self.session.start(self.capture)

    def stop(self) -> list[Event]:
        self.session.stop(self.capture, PATIENCE_S)
        return self.sink.events()

    def names(self) -> list[str]:
        return [row.name for row in self.stop()]

    def unsampled(self) -> int:
        return self.recorder.counters().unsampled - self._before.unsampled


@pytest.fixture
def alone(recorder: Recorder) -> Iterator[SampledAlone]:
    made = SampledAlone(recorder)
    yield made
    made.session.at_exit()


def span(number: int, *, sampled: bool) -> Any:
    context = SpanContext(number, number, is_remote=False, trace_flags=TraceFlags(int(sampled)))
    return trace.use_span(NonRecordingSpan(context))


def test_ranges_in_an_unsampled_span_are_counted_and_not_recorded(alone: SampledAlone) -> None:
    with span(1, sampled=False):
        with alone.range("outer"), alone.range("inner"):
            pass
        source_calls.end(source_calls.begin("by id", 0, EventSource.RECORD_FUNCTION))
        assert source_calls.mark("mark") == 0
    with alone.range("after"):
        pass
    assert (alone.names(), alone.unsampled()) == (["after"], 4)


def test_whoever_joins_sees_everything_from_then_on(alone: SampledAlone) -> None:
    with span(1, sampled=False), alone.range("open"):
        joined = Running(alone.session, Selected())
        with alone.range("outer"), alone.range("inner"):
            pass
        rows = {row.name: row for row in joined.stop().sink.events()}
        with alone.range("not recorded again"):
            pass
    assert rows.keys() == {"outer", "inner"}
    assert (rows["inner"].parent, rows["outer"].parent) == (rows["outer"].event_id, 0)
    assert "not recorded again" not in alone.names()
    assert alone.unsampled() == 2


def test_a_sink_that_wants_it_from_now_on(alone: SampledAlone) -> None:
    with span(1, sampled=False):
        with alone.range("not recorded"):
            pass
        alone.sink.wants_unsampled = True
        assert alone.session.flush(alone.capture, PATIENCE_S)
        with alone.range("recorded"):
            pass
        alone.sink.wants_unsampled = False
        assert alone.session.flush(alone.capture, PATIENCE_S)
        with alone.range("not recorded again"):
            pass
    assert (alone.names(), alone.unsampled()) == (["recorded"], 2)


@pytest.mark.parametrize("drained", [False, True])
def test_a_forked_child_whose_sinks_want_all_has_it_from_its_first_range_on(
    alone: SampledAlone, drained: bool
) -> None:
    alone.stop()
    alone.start(SampledHere())

    def work() -> None:
        if drained:
            assert alone.session.flush(alone.capture, PATIENCE_S)
        with alone.range("recorded"):
            pass
        counters = alone.recorder.counters()
        assert counters.unsampled == 0

    with span(1, sampled=False), alone.range("not recorded"):
        in_child(work)
    assert alone.names() == []


Node: TypeAlias = "tuple[str, list[Any]]"
nodes: st.SearchStrategy[list[Node]] = st.recursive(
    st.just([]),
    lambda inner: st.lists(
        st.tuples(st.sampled_from(["range", "by id", "sampled", "unsampled"]), inner), max_size=3
    ),
    max_leaves=20,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=nodes)
def test_any_program(recorder: Recorder, program: list[Node]) -> None:
    alone = SampledAlone(recorder)
    expected: dict[int, tuple[int, int]] = {}
    others = 0

    def run(nodes: list[Node], around: int, current: int, recorded: bool) -> None:
        """``around``: the event id of the innermost recorded range, 0 for none."""
        nonlocal others
        for what, inner in nodes:
            if what in ("sampled", "unsampled"):
                number = current + 1
                with span(number, sampled=what == "sampled"):
                    run(inner, around, number, what == "sampled")
                continue
            others += not recorded
            with opened(what) as event_id:
                if recorded:
                    expected[event_id] = (around, current)
                run(inner, event_id or around, current, recorded)

    def opened(what: str) -> Any:
        return _by_id(alone.recorder) if what == "by id" else _by_object(alone, what)

    try:
        run(program, 0, 0, True)
        rows = {row.event_id: (row.parent, row.context.span_id) for row in alone.stop()}
        assert (rows, alone.unsampled()) == (expected, others)
    finally:
        alone.session.at_exit()


class _by_id:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __enter__(self) -> int:
        self._event_id = source_calls.begin("by id", 7, EventSource.RECORD_FUNCTION)
        return self._event_id

    def __exit__(self, *_error: object) -> None:
        source_calls.end(self._event_id)


class _by_object:
    """The event id of a ``record_function`` is what the task is in."""

    def __init__(self, alone: SampledAlone, name: str) -> None:
        self._recorder = alone.recorder
        self._range = alone.range(name)

    def __enter__(self) -> int:
        before = _native.ranges_after(None)
        self._range.__enter__()
        inside = _native.ranges_after(None)
        return inside[0].event_id if inside != before else 0

    def __exit__(self, *_error: object) -> None:
        self._range.__exit__(None, None, None)
