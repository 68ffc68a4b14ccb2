"""What stands in the place of OpenTelemetry's ``attach``, ``detach`` and ``get_current``: it does
what they do, the recorder learns of each change, and Python is asked no more than once.
"""

from __future__ import annotations

import contextvars
import gc
import inspect
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import wrapt
from opentelemetry import context, trace
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext
from opentelemetry.trace import NonRecordingSpan, SpanContext, propagation

from helpers import source_calls
from helpers.recording_helpers import Capture, Worker, by_name
from otel_recfn import _native  # to take back what sources/otel_context.py set
from otel_recfn.model.events import EventSource, RecordScope
from otel_recfn.recording.recorder import Recorder
from otel_recfn.sources.otel_context import METHODS_CALLED, VARIABLE, ContextWatcher
from otel_recfn.sources.protocol import Wanted
from otel_recfn.sources.range_spans import ExposedRanges
from otel_recfn.support.seen_spans import MAX_SEEN_SPANS, SeenSpans

RUNTIME: Any = context._RUNTIME_CONTEXT


class Shown:
    """Chooses ranges that are shown, by their source, and counts how often it is asked."""

    def __init__(self) -> None:
        self.hidden: set[int] = set()
        self.asked = 0
        self.has_target = True

    def takes(self, scope: int, source: int) -> bool:
        self.asked += 1
        return source not in self.hidden

    def ranges(self) -> ExposedRanges:
        return ExposedRanges(
            takes=self.takes,
            had_begun=lambda serial, event_id: False,
            has_target=lambda: self.has_target,
            trace_of=lambda root: SpanContext(root, 1, False),
            is_outside=lambda trace_id, span_id: False,
            start_step=lambda name, number, code, start_ns, requests: None,
            note_parent_span=lambda trace_id, span_id, span: None,
        )


@pytest.fixture
def shown() -> Shown:
    return Shown()


@pytest.fixture
def watcher(recorder: Recorder, shown: Shown) -> Iterator[ContextWatcher]:
    watcher = ContextWatcher(recorder)
    watcher.enable(Wanted(exposed=shown.ranges()))
    yield watcher
    watcher.disable()


@pytest.fixture
def watched(watcher: ContextWatcher, recorder: Recorder) -> Capture:
    return Capture(recorder)


def span(number: int, *, sampled: bool = True) -> NonRecordingSpan:
    return NonRecordingSpan(
        SpanContext(number, number, False, trace_flags=trace.TraceFlags(int(sampled)))
    )


def attach(made: Any) -> Any:
    return context.attach(trace.set_span_in_context(made))


def in_a_range(capture: Capture, name: str) -> None:
    capture.end(capture.begin(name))


def context_of(capture: Capture) -> dict[str, int]:
    return {name: row.context.trace_id for name, row in by_name(capture.finish()).items()}


# --- what they are


@pytest.mark.parametrize("name", ["attach", "detach", "get_current"])
def test_they_look_like_what_they_stand_for(watched: Capture, name: str) -> None:
    original = getattr(ContextVarsRuntimeContext, name)
    found = getattr(RUNTIME, name)
    assert found.__wrapped__.__func__ is original
    assert (found.__name__, found.__qualname__) == (name, original.__qualname__)
    assert (found.__doc__, found.__module__) == (original.__doc__, original.__module__)
    assert (
        list(inspect.signature(found).parameters)
        == list(inspect.signature(original).parameters)[1:]
    )


def test_they_are_given_back(recorder: Recorder) -> None:
    watcher = ContextWatcher(recorder)
    watcher.enable(Wanted())
    kept = [weakref.ref(RUNTIME.attach), weakref.ref(RUNTIME.get_current)]
    watcher.disable()
    assert not {"attach", "detach", "get_current"} & vars(RUNTIME).keys()
    gc.collect()
    assert [each() for each in kept] == [None, None]


def test_this_opentelemetry_is_as_the_native_part_takes_it() -> None:
    """When this fails, OpenTelemetry has changed: its own functions are called then, which takes
    longer.
    """
    made = span(1)
    assert trace.set_span_in_context(made)[propagation._SPAN_KEY] is made
    assert isinstance(vars(RUNTIME)[VARIABLE], contextvars.ContextVar)
    for name, method in METHODS_CALLED.items():
        code = getattr(ContextVarsRuntimeContext, name).__code__
        assert code.co_names == (VARIABLE, method)


def test_a_call_that_is_none_says_what_it_says_without_us(watched: Capture) -> None:
    for call in (
        lambda: RUNTIME.attach(),
        lambda: RUNTIME.attach(1, 2),
        lambda: RUNTIME.detach("no token"),
        lambda: RUNTIME.get_current(1),
    ):
        with pytest.raises(TypeError) as ours:
            call()
        text = str(ours.value)
        with pytest.MonkeyPatch.context() as patch:
            for name in METHODS_CALLED:
                patch.delattr(RUNTIME, name)
            with pytest.raises(TypeError) as theirs:
                call()
        assert text == str(theirs.value)


def test_a_token_is_used_once_and_in_its_own_context(watched: Capture) -> None:
    token = RUNTIME.attach(context=context.get_current())
    with pytest.raises(ValueError, match="different Context"):
        contextvars.copy_context().run(RUNTIME.detach, token)
    RUNTIME.detach(token=token)
    with pytest.raises(RuntimeError, match="used once"):
        RUNTIME.detach(token)


# --- the recorder learns of each change


def test_what_is_attached_is_read_anew_in_whichever_thread(
    watched: Capture, workers: list[Worker]
) -> None:
    def attach_and_detach(first: int) -> None:
        in_a_range(watched, f"before {first}")
        outer = attach(span(first))
        in_a_range(watched, f"in {first}")
        inner = attach(span(first + 1))
        in_a_range(watched, f"in {first + 1}")
        context.detach(inner)
        in_a_range(watched, f"in {first} again")
        context.detach(outer)
        in_a_range(watched, f"after {first}")

    attach_and_detach(1)
    workers[0].call(lambda: attach_and_detach(5))
    found = context_of(watched)
    for first in (1, 5):
        assert [found[f"{place} {first}"] for place in ("before", "in", "after")] == [0, first, 0]
        assert (found[f"in {first + 1}"], found[f"in {first} again"]) == (first + 1, first)


def test_a_span_that_was_attached_outside_ends_inside_a_range(watched: Capture) -> None:
    tokens = [attach(span(1)), attach(span(2))]
    outer = watched.begin("outer")
    inner = attach(span(3))
    context.detach(tokens.pop())
    in_a_range(watched, "inner")
    watched.end(outer)
    in_a_range(watched, "later")
    context.detach(inner)
    in_a_range(watched, "last")
    context.detach(tokens.pop())
    found = context_of(watched)
    assert (found["outer"], found["later"], found["last"]) == (2, 1, 2)


def test_what_a_thread_read_of_a_span_keeps_it_no_longer_than_it_is_attached(
    watched: Capture,
) -> None:
    made = span(1)
    token = attach(made)
    in_a_range(watched, "in the span")
    context.detach(token)
    gone = weakref.ref(made)
    del made, token
    in_a_range(watched, "after")
    gc.collect()
    assert gone() is None


def test_after_disable_they_only_pass_calls_on(
    recorder: Recorder, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = ContextWatcher(recorder)
    passed = []
    watcher.enable(Wanted(exposed=shown.ranges()))
    ours = RUNTIME.get_current

    def theirs() -> Any:
        passed.append(None)
        return ours()

    monkeypatch.setattr(RUNTIME, "get_current", theirs)
    watcher.disable()
    assert RUNTIME.get_current is theirs
    capture = Capture(recorder)
    event_id = capture.begin()
    assert context.get_current() is ours.original()
    watcher.enable(Wanted(exposed=shown.ranges()))  # one more of ours, around theirs
    inner = capture.begin()
    assert len(passed) == 1
    assert context.get_current() is not ours.original()
    assert len(passed) > 1
    capture.end(inner)
    capture.end(event_id)
    watcher.disable()
    assert RUNTIME.get_current is theirs
    monkeypatch.undo()
    vars(RUNTIME).pop("get_current", None)


@pytest.mark.parametrize("place", [RUNTIME, ContextVarsRuntimeContext])
def test_somebody_who_wrapped_before_us_is_called(
    recorder: Recorder, shown: Shown, monkeypatch: pytest.MonkeyPatch, place: Any
) -> None:
    passed = []

    @wrapt.decorator
    def noting(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        passed.append(wrapped.__name__)
        return wrapped(*args, **kwargs)

    for name in METHODS_CALLED:
        monkeypatch.setattr(place, name, noting(getattr(place, name)))
    watcher = ContextWatcher(recorder)
    watcher.enable(Wanted(exposed=shown.ranges()))
    made = trace.set_span_in_context(span(1), context.Context())
    token = context.attach(made)
    assert context.get_current() is made
    context.detach(token)
    watcher.disable()
    assert passed == ["attach", "get_current", "detach"]


class Slotted:
    """A runtime context of somebody else's, which takes no attributes."""

    __slots__ = ()
    current: Any = context.Context()

    def attach(self, value: Any) -> Any:
        before, Slotted.current = Slotted.current, value
        return before

    def detach(self, token: Any) -> None:
        Slotted.current = token

    def get_current(self) -> Any:
        return Slotted.current


def test_where_the_object_cannot_be_changed_the_functions_are_wrapped(
    recorder: Recorder, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "_RUNTIME_CONTEXT", Slotted())
    before = context.attach, context.detach, context.get_current
    watcher = ContextWatcher(recorder)
    watcher.enable(Wanted(exposed=shown.ranges()))
    assert context.attach is not before[0]
    capture = Capture(recorder)
    token = context.attach(context=trace.set_span_in_context(span(1)))
    outer = capture.begin("outer")
    seen = trace.get_current_span()
    capture.end(outer)
    context.detach(token)
    in_a_range(capture, "after")
    watcher.disable()
    assert (context.attach, context.detach, context.get_current) == before
    assert seen.get_span_context().trace_id == 1
    assert context_of(capture) == {"outer": 1, "after": 0}


def test_without_the_key_of_the_span_opentelemetry_is_asked(watched: Capture, shown: Shown) -> None:
    _native.set_span_lookup(None, trace.INVALID_SPAN, trace.get_current_span)
    outer = watched.begin("outer")
    token = attach(span(1))
    in_a_range(watched, "in the span")
    seen = context.get_current()
    context.detach(token)
    in_a_range(watched, "after")
    watched.end(outer)
    assert trace.get_current_span(seen).get_span_context().trace_id == 1
    found = by_name(watched.finish())
    assert (found["in the span"].context.trace_id, found["after"].parent) == (1, outer)


# --- what the program sees is made once


def test_outside_of_ranges_it_is_what_is_attached(watched: Capture, shown: Shown) -> None:
    in_a_range(watched, "over")
    made = trace.set_span_in_context(span(1))
    token = context.attach(made)
    assert context.get_current() is made
    context.detach(token)
    assert shown.asked == 0


def test_in_a_range_it_is_made_once_for_each_context(watched: Capture, shown: Shown) -> None:
    token = attach(span(1))
    outer = watched.begin()
    seen = context.get_current()
    assert trace.get_current_span(seen).get_span_context().trace_id == 1
    asked = shown.asked
    assert [context.get_current() for _ in range(3)] == [seen] * 3
    assert all(each is seen for each in (context.get_current(), context.get_current()))
    inner = attach(made := span(2))  # its own span is current, with no range in it
    assert trace.get_current_span() is made
    context.detach(inner)
    assert context.get_current() is seen
    assert shown.asked == asked
    baggage = context.attach(context.set_value("key", 1, RUNTIME.get_current.original()))
    assert context.get_current() is not seen
    assert shown.asked > asked
    context.detach(baggage)
    watched.end(outer)
    assert trace.get_current_span().get_span_context().span_id == 1
    context.detach(token)


def test_where_the_program_says_that_no_span_is_current_no_range_is_shown(watched: Capture) -> None:
    around = attach(span(1))
    outer = watched.begin()
    for none in (None, trace.INVALID_SPAN):
        token = attach(none)
        assert trace.get_current_span() is trace.INVALID_SPAN
        context.detach(token)
        assert trace.get_current_span() is not trace.INVALID_SPAN
    watched.end(outer)
    context.detach(around)


def test_a_range_that_is_not_shown_is_asked_for_once(watched: Capture, shown: Shown) -> None:
    shown.hidden = {int(EventSource.MODULE)}
    outer = watched.begin()
    seen = context.get_current()
    hidden = source_calls.begin("module", int(RecordScope.USER_SCOPE), int(EventSource.MODULE), "m")
    assert context.get_current() is seen
    asked = shown.asked
    assert context.get_current() is seen
    assert shown.asked == asked
    watched.end(hidden)
    watched.end(outer)


def test_below_an_unsampled_span_it_is_the_attached_one(watched: Capture, shown: Shown) -> None:
    token = attach(span(1, sampled=False))
    attached = context.get_current()
    outer = watched.begin()
    assert context.get_current() is attached
    asked = shown.asked
    assert context.get_current() is attached
    assert shown.asked == asked
    watched.end(outer)
    context.detach(token)


def test_where_nothing_takes_spans_yet_it_is_asked_again(watched: Capture, shown: Shown) -> None:
    shown.has_target = False
    outer = watched.begin()
    assert trace.get_current_span() is trace.INVALID_SPAN
    shown.has_target = True
    assert trace.get_current_span() is not trace.INVALID_SPAN
    watched.end(outer)


def test_another_who_shows_ranges_decides_anew(
    watched: Capture, watcher: ContextWatcher, shown: Shown
) -> None:
    outer = watched.begin()
    assert trace.get_current_span() is not trace.INVALID_SPAN
    # As if the capture that makes spans had ended, and another one had begun, inside the range.
    watcher.enable(Wanted())
    assert trace.get_current_span() is trace.INVALID_SPAN
    watcher.enable(Wanted(exposed=Shown().ranges()))
    assert trace.get_current_span() is trace.INVALID_SPAN
    inner = watched.begin()
    assert trace.get_current_span() is not trace.INVALID_SPAN
    watched.end(inner)
    watched.end(outer)


def test_when_the_recording_has_ended_no_range_is_shown(
    watched: Capture, recorder: Recorder
) -> None:
    watched.begin()
    assert trace.get_current_span() is not trace.INVALID_SPAN
    recorder.stop()
    assert trace.get_current_span() is trace.INVALID_SPAN


# --- the spans that became current


def test_a_span_that_stays_attached_is_known_however_many_come_and_go(
    watcher: ContextWatcher,
) -> None:
    number = 1 << 40  # of no other test's span, which might still live
    seen = SeenSpans()
    epoch = span(number)
    attached = attach(epoch)
    for other in range(2, 3 * MAX_SEEN_SPANS):
        context.detach(attach(span(other)))
    context.detach(attached)
    _kept = seen.retain()
    assert seen.find(number, number) is epoch


def test_spans_that_are_all_open_are_forgotten_oldest_first(watcher: ContextWatcher) -> None:
    seen = SeenSpans()
    spans = [span(number) for number in range(1, 2 * MAX_SEEN_SPANS)]
    for each in spans:
        context.detach(attach(each))
    _kept = seen.retain()
    assert seen.find(1, 1) is None
    assert seen.find(len(spans), len(spans)) is spans[-1]


def test_a_span_whose_ids_cannot_be_read_is_passed_over(watcher: ContextWatcher) -> None:
    class Broken(NonRecordingSpan):
        def get_span_context(self) -> SpanContext:
            raise RuntimeError("broken")

    seen = SeenSpans()
    broken = Broken(SpanContext(1, 1, False))
    other = span(2)
    for each in (broken, other):
        context.detach(attach(each))
    _kept = seen.retain()
    assert seen.find(2, 2) is other
