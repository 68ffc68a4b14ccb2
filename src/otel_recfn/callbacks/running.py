"""What runs on the range that begins now in this thread (source: ``at::getStepCallbacks``), and its calls.

A callback can't disturb the program: one that raises is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from otel_recfn.callbacks import registry, thread_locals
from otel_recfn.callbacks.callback import CallbackEntry
from otel_recfn.callbacks.sampling import ScopeSampler, StartEndPair, StepCallbacks
from otel_recfn.callbacks.thread_locals import RunningCallback, ThreadState, is_record_function_enabled
from otel_recfn.model.events import RecordScope
from otel_recfn.recording.recorder import recorder
from otel_recfn.support.signal_handlers import raised_by_signal_handler


def get_step_callbacks(scope: RecordScope) -> StepCallbacks:
    """The callbacks of the range that begins now: global ones first, then this thread's. Each call counts as a range."""
    state = thread_locals.current()
    sampler = _sampler(state, scope)
    thread_id = recorder.current_thread_id()
    if state.in_callback or not is_record_function_enabled():
        sampler.draw()
        return StepCallbacks((), thread_id, scope)
    return sampler.step(thread_id)


def get_step_callbacks_unless_empty(scope: RecordScope) -> StepCallbacks | None:
    """The same; None where nothing runs."""
    step = get_step_callbacks(scope)
    return step if step.callbacks else None


def leave_next_unobserved() -> None:
    """Leave the calling thread's next ``record_function`` ranges to the recorder, as many as run no callbacks."""
    state = thread_locals.current()
    sampler = _sampler(state, RecordScope.USER_SCOPE)
    if not registry.may_work_for_another():
        sampler.pass_over(recorder.leave_unobserved(sampler.ranges_without_callbacks(), state.version))


def _sampler(state: ThreadState, scope: RecordScope) -> ScopeSampler:
    """The calling thread's sampler, with all ranges counted that began."""
    unobserved = recorder.take_back_unobserved() if scope == RecordScope.USER_SCOPE else 0
    own = registry.thread_entries(state)
    if state.version != registry.version():
        state.version, state.samplers = registry.version(), {}
    sampler = state.samplers.get(scope)
    if sampler is None:
        entries = (*registry.global_entries(), *own)
        sampler = state.samplers[scope] = ScopeSampler(RecordScope(scope), entries, state.generator, _asked)
    elif unobserved:
        sampler.pass_over(-unobserved)
    return sampler


def _asked(entry: CallbackEntry, scope: RecordScope) -> bool:
    """What the callback's ``should_run`` says; one that raises is removed with its callback."""
    should_run = entry.callback.should_run()
    assert should_run is not None
    try:
        with RunningCallback():
            return bool(should_run(scope))
    except (Exception, SystemExit) as error:
        if raised_by_signal_handler(error):
            raise
        registry.failed(entry.handle, error)
        return False


def run_starts(pairs: Sequence[StartEndPair], range_: Any, contexts: list[Any]) -> None:
    """Call the starts with ``range_``, and add what each returns to ``contexts``.

    Raises:
        BaseException: a callback was interrupted. It has not started, nor have those after it: they get no end.
    """
    state = thread_locals.current()
    outer, state.in_callback = state.in_callback, True
    try:
        for pair in pairs:  # one by one: those before an interrupted one have started
            contexts.append(_run(pair, pair.start, range_))  # noqa: PERF401
    finally:
        state.in_callback = outer


def run_ends(pairs: Sequence[StartEndPair], range_: Any, contexts: Sequence[Any]) -> None:
    """Call the ends of those that started, each with ``range_`` and its context."""
    state = thread_locals.current()
    outer, state.in_callback = state.in_callback, True
    try:
        for pair, context in zip(pairs, contexts, strict=False):
            _run(pair, pair.end, range_, context)
    finally:
        state.in_callback = outer


def _run(pair: StartEndPair, function: Callable[..., Any] | None, range_: Any, *context: Any) -> Any:
    if function is None or registry.has_failed(pair.handle):
        return None
    try:
        return function(range_, *context)
    except (Exception, SystemExit) as error:  # a callback can't end the program
        if raised_by_signal_handler(error):
            raise
        registry.failed(pair.handle, error, _name_of(range_))
        return None


def _name_of(range_: Any) -> str:
    try:
        return str(range_.name())
    except Exception:  # a schema may be of any kind
        return ""
