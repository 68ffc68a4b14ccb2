"""What runs on the range that begins now in this thread (source: ``at::getStepCallbacks``)."""

from __future__ import annotations

from otel_recfn.model.scope import RecordScope
from otel_recfn.runtime import callbacks, process_recorder, thread_locals
from otel_recfn.runtime.sampling import ScopeSampler, StepCallbacks
from otel_recfn.runtime.thread_locals import ThreadState


def get_step_callbacks(scope: RecordScope) -> StepCallbacks:
    """The callbacks that run on the range that begins now: global ones first, then this thread's. Each call counts as a range."""
    state = thread_locals.current()
    thread_id = process_recorder.recorder.current_thread_id()
    if state.in_callback:
        return StepCallbacks((), thread_id, scope)
    if state.version != callbacks.version():
        state.version, state.samplers = callbacks.version(), {}
    sampler = state.samplers.get(scope)
    if sampler is None:
        sampler = state.samplers[scope] = _make_sampler(state, scope)
    return sampler.step(thread_id)


def get_step_callbacks_unless_empty(scope: RecordScope) -> StepCallbacks | None:
    """The same; None where nothing runs."""
    step = get_step_callbacks(scope)
    return step if step.callbacks else None


def _make_sampler(state: ThreadState, scope: RecordScope) -> ScopeSampler:
    entries = (*callbacks.global_entries(), *callbacks.thread_entries(state)) if state.enabled else ()
    return ScopeSampler(RecordScope(scope), entries, state.generator)
