"""What runs on the range that begins now in this thread (source: ``at::getStepCallbacks``)."""

from __future__ import annotations

from otel_recfn.model.scope import RecordScope
from otel_recfn.recording.recorder import recorder
from otel_recfn.runtime import callback_lists, thread_locals
from otel_recfn.runtime.callback_entries import CallbackEntry
from otel_recfn.runtime.sampling import ScopeSampler, StepCallbacks
from otel_recfn.runtime.thread_locals import RunningCallback, ThreadState
from otel_recfn.support.interrupts import raised_by_signal_handler


def get_step_callbacks(scope: RecordScope) -> StepCallbacks:
    """The callbacks of the range that begins now: global ones first, then this thread's. Each call counts as a range."""
    state = thread_locals.current()
    sampler = _sampler(state, scope)
    thread_id = recorder.current_thread_id()
    if state.in_callback or not callback_lists.is_enabled():
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
    if not callback_lists.may_work_for_another():
        sampler.pass_over(recorder.leave_unobserved(sampler.ranges_without_callbacks(), state.version))


def _sampler(state: ThreadState, scope: RecordScope) -> ScopeSampler:
    """The calling thread's sampler, with all ranges counted that began."""
    unobserved = recorder.take_back_unobserved() if scope == RecordScope.USER_SCOPE else 0
    own = callback_lists.thread_entries(state)
    if state.version != callback_lists.version():
        state.version, state.samplers = callback_lists.version(), {}
    sampler = state.samplers.get(scope)
    if sampler is None:
        entries = (*callback_lists.global_entries(), *own)
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
        callback_lists.failed(entry.handle, error)
        return False
