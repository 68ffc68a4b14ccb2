"""The callbacks of the process and of the calling thread, by their handles; and which of them run
on the range that begins now.

    thread-local   only ranges of the thread that added them, and of work that
                   ``ThreadLocalState`` carries elsewhere
    global         ranges of every thread

(source: ``at::addGlobalCallback`` and its kin). Each thread caches which callbacks run on its
ranges, and compares one number, ``_version``, to see whether the cache is valid.

Two follow changes: the recorder, which hands ranges of ``record_function`` to the range observer
while a callback may want them, and ``TorchCallbacks``, which has PyTorch's own operators call the
callbacks.
"""

from __future__ import annotations

import copy
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from otel_recfn import _native
from otel_recfn.callbacks import thread_locals
from otel_recfn.callbacks.callback import (
    INVALID_CALLBACK_HANDLE,
    CallbackEntry,
    Entries,
    RecordFunctionCallback,
    ScopeSampler,
    StartEndPair,
    StepCallbacks,
)
from otel_recfn.callbacks.range_in_torch import TorchObservers
from otel_recfn.callbacks.thread_locals import (
    RunningCallback,
    ThreadState,
    is_record_function_enabled,
)
from otel_recfn.callbacks.torch_callbacks import TorchCallbacks
from otel_recfn.model.events import RecordScope
from otel_recfn.recording.ranges import RangeObserver
from otel_recfn.recording.watched import unwatch, watch
from otel_recfn.support.forks import ForkSafeLock
from otel_recfn.support.interruptions import raised_by_signal_handler
from otel_recfn.support.logs import log

_handles = itertools.count(INVALID_CALLBACK_HANDLE + 1)
_lock = ForkSafeLock()
_version = 0
"""The version of the global callbacks, which caches read before them, so that a change in between
is noticed.

A new one ends what threads left unobserved.
"""
_global_entries: Entries = ()
_failed: set[int] = set()
_threads_with_callbacks: weakref.WeakSet[ThreadState] = weakref.WeakSet()
_observer: RangeObserver | None = None


# --- by handle


def add_global_callback(callback: RecordFunctionCallback) -> int:
    """Run ``callback`` on the ranges of all threads. Returns the handle by which to remove it."""
    with _lock:
        entry = _new_entry(callback)
        _set_global((*_global_entries, entry))
    _torch_callbacks.finish_adding()
    return entry.handle


def add_thread_local_callback(callback: RecordFunctionCallback) -> int:
    """Run ``callback`` on the ranges of this thread.

    Returns the handle by which this thread may remove it.
    """
    entry = _new_entry(callback)
    install((*thread_entries(), entry))
    _torch_callbacks.finish_adding()
    return entry.handle


def _new_entry(callback: RecordFunctionCallback) -> CallbackEntry:
    if not isinstance(callback, RecordFunctionCallback):
        raise TypeError(
            f"{callback!r} is no RecordFunctionCallback; pass RecordFunctionCallback(start, end)"
        )
    return CallbackEntry(copy.copy(callback), next(_handles))


def remove_callback(handle: int) -> None:
    """Remove a callback of this thread, or a global one; open ranges still get its end.

    Does nothing for other handles.
    """
    _change(handle, lambda entries: _without_handle(entries, handle))


def disable_callback(handle: int) -> None:
    """Stop running a callback of this thread, or a global one, until it is reenabled.

    Does nothing for other handles.
    """
    _change(handle, lambda entries: _switched(entries, handle, False))


def reenable_callback(handle: int) -> None:
    """Take back ``disable_callback``. Does nothing for other handles."""
    _change(handle, lambda entries: _switched(entries, handle, True))


def _change(handle: int, change: Callable[[Entries], Entries]) -> None:
    """Change the list that has this callback."""
    own = thread_entries()
    if any(entry.handle == handle for entry in own):
        _change_own(change(own))
        return
    with _lock:
        if any(entry.handle == handle for entry in _global_entries):
            _set_global(change(_global_entries))


def _change_own(entries: Entries) -> None:
    before = thread_entries()
    install(entries)
    with _lock:
        live_handles = {
            entry.handle for state in _threads_with_callbacks for entry in state.callbacks
        }
        _torch_callbacks.release({entry.handle for entry in before} - live_handles)


def _without_handle(entries: Entries, handle: int) -> Entries:
    return tuple([entry for entry in entries if entry.handle != handle])


def _switched(entries: Entries, handle: int, enabled: bool) -> Entries:
    return tuple(
        [entry._replace(enabled=enabled) if entry.handle == handle else entry for entry in entries]
    )


def clear_global_callbacks() -> None:
    """Remove all global callbacks."""
    with _lock:
        _set_global(())


def clear_thread_local_callbacks() -> None:
    """Remove all callbacks of this thread."""
    _change_own(())


def clear_callbacks() -> None:
    """Remove all global callbacks and those of this thread."""
    clear_global_callbacks()
    clear_thread_local_callbacks()


def has_global_callbacks() -> bool:
    """Whether there is an enabled global callback."""
    return any(entry.enabled for entry in _global_entries)


def has_thread_local_callbacks() -> bool:
    """Whether this thread has an enabled callback of its own."""
    return any(entry.enabled for entry in thread_entries())


def has_callbacks() -> bool:
    """Whether ranges of this thread may run a callback."""
    return has_global_callbacks() or has_thread_local_callbacks()


# --- the lists


def global_entries() -> Entries:
    """The global callbacks."""
    return _global_entries


def _set_global(entries: Entries) -> None:
    """Replace the global callbacks. The caller holds the lock."""
    global _global_entries, _version
    _global_entries = entries
    _version += 1
    watch_ranges()
    _torch_callbacks.repeat_global()


def thread_entries() -> Entries:
    """The callbacks of the calling thread, without those that failed, in this thread or in another.

    In a thread that works for another one they are that one's.
    """
    state = thread_locals.current()
    entries = thread_locals.propagated_state().callbacks
    if entries is not state.callbacks:
        _replace_callbacks(state, entries)
    if _failed and any(entry.handle in _failed for entry in entries):
        install(tuple([entry for entry in entries if entry.handle not in _failed]))
    return state.callbacks


def install(entries: Entries) -> None:
    """Make these the calling thread's callbacks."""
    before = thread_locals.propagated_state()
    if entries is before.callbacks:
        return
    thread_locals.put(before._replace(callbacks=entries))
    _replace_callbacks(thread_locals.current(), entries)
    with _lock:
        _torch_callbacks.repeat_thread(entries)


def _replace_callbacks(state: ThreadState, entries: Entries) -> None:
    global _version
    state.callbacks = entries
    _draw_anew(state)
    with _lock:
        if not _threads_with_callbacks:
            # Threads that may work for this one from now on have left ranges unobserved.
            _version += 1
        if any(entry.enabled for entry in entries):
            _threads_with_callbacks.add(state)
        else:
            _threads_with_callbacks.discard(state)
        watch_ranges()


def seed(value: int) -> None:
    """Seed the calling thread's sampling: the same seed gives the same samples."""
    state = thread_locals.current()
    state.generator.seed(value)
    _draw_anew(state)
    _torch_callbacks.seed(value)


def _draw_anew(state: ThreadState) -> None:
    state.samplers = {}
    _native.take_back_unobserved()


# --- what runs on the range that begins now (source: ``at::getStepCallbacks``)


def get_step_callbacks(scope: RecordScope) -> StepCallbacks:
    """The callbacks of the range that begins now: global ones first, then this thread's.

    Each call counts as a range.

    Within a callback, and while RecordFunction is off, none run.
    """
    state = thread_locals.current()
    thread_id = _native.current_thread_id()
    unobserved = _native.take_back_unobserved() if scope == RecordScope.USER_SCOPE else 0
    own = thread_entries()
    if state.version != _version:
        state.version, state.samplers = _version, {}
    sampler = state.samplers.get(scope)
    if sampler is None:
        entries = (*_global_entries, *own)
        sampler = state.samplers[scope] = ScopeSampler(
            RecordScope(scope), entries, state.generator, _should_run
        )
    elif unobserved:
        sampler.pass_over(-unobserved)
    if state.in_callback or not is_record_function_enabled():
        sampler.count()
        return StepCallbacks((), thread_id, scope)
    return sampler.step(thread_id)


def leave_next_unobserved() -> None:
    """Leave the calling thread's next ranges of ``record_function`` to the recorder, as many as
    run no callbacks.
    """
    state = thread_locals.current()
    sampler = state.samplers.get(RecordScope.USER_SCOPE)
    may_work_for_another = thread_locals.torch_propagates() and len(_threads_with_callbacks) > 0
    if sampler is not None and not may_work_for_another:
        sampler.pass_over(
            _native.leave_unobserved(sampler.ranges_without_callbacks(), state.version)
        )


def get_step_callbacks_unless_empty(scope: RecordScope) -> StepCallbacks | None:
    """The callbacks of the range that begins now; None if none runs.

    Each call counts as a range.
    """
    step = get_step_callbacks(scope)
    return step if step.callbacks else None


def _should_run(entry: CallbackEntry, scope: RecordScope) -> bool:
    """The answer of the callback's ``should_run``; if it raises, its callback is removed."""
    should_run = entry.callback.should_run()
    assert should_run is not None
    try:
        with RunningCallback():
            return bool(should_run(scope))
    except BaseException as error:
        if raised_by_signal_handler(error):
            raise
        remove_failed(entry.handle, error)
        return False


def run_starts(pairs: Sequence[StartEndPair], range_: Any, contexts: list[Any]) -> None:
    """Call the starts with ``range_``, and add what each returns to ``contexts``.

    A callback that is interrupted has not started, nor have those after it: they get no end.
    """
    if not pairs:  # the common case, as the recorder alone observes
        return
    state = thread_locals.current()
    outer, state.in_callback = state.in_callback, True
    try:
        for pair in pairs:  # one by one, so that those before an interrupted one have started
            contexts.append(_run(pair, pair.start, range_))  # noqa: PERF401
    finally:
        state.in_callback = outer


def run_ends(pairs: Sequence[StartEndPair], range_: Any, contexts: Sequence[Any]) -> None:
    """Call the ends of those that started, each with ``range_`` and its context."""
    if not pairs:
        return
    state = thread_locals.current()
    outer, state.in_callback = state.in_callback, True
    try:
        for pair, context in zip(pairs, contexts, strict=False):
            _run(pair, pair.end, range_, context)
    finally:
        state.in_callback = outer


def _run(
    pair: StartEndPair, function: Callable[..., Any] | None, range_: Any, *context: Any
) -> Any:
    if function is None or pair.handle in _failed:
        return None
    try:
        return function(range_, *context)
    except BaseException as error:  # a callback can't end the program
        if raised_by_signal_handler(error):
            raise
        remove_failed(pair.handle, error, range_.name())
        return None


# --- callbacks that failed


def remove_failed(handle: int, error: BaseException, name: str = "") -> None:
    """Remove a callback that raised on the range ``name``, in every thread, and log it once."""
    with _lock:
        if handle in _failed:
            return
        _failed.add(handle)
        _set_global(_without_handle(_global_entries, handle))
        _torch_callbacks.fail(handle)
        thread_entries()
    where = f" (on the range {name!r})" if name else ""
    message = "RecordFunction callback %d raised and was removed%s; the program goes on without it"
    log.warning(message, handle, where, exc_info=error)


def _failed_in_torch(handle: int, error: BaseException, name: str) -> bool:
    """Handle an error of a callback on a range of PyTorch's.

    What a signal handler raised goes on to the program.
    """
    if raised_by_signal_handler(error):
        return True
    remove_failed(handle, error, name)
    return False


_torch_callbacks = TorchCallbacks(_lock, global_entries, thread_entries, _failed_in_torch)


# --- who follows changes


def observe_ranges_with(observer: RangeObserver) -> None:
    """Hand ranges of ``record_function`` to ``observer`` while a callback may select them."""
    global _observer
    _observer = observer
    watch_ranges()


def watch_ranges() -> None:
    """Say to the recorder and to generated wrappers whether a callback may select ranges."""
    with _lock:
        wanted = has_global_callbacks() or len(_threads_with_callbacks) > 0
        selected = len(_threads_with_callbacks) > 0 or any(
            _selects_user_ranges(entry) for entry in _global_entries
        )
        _native.set_range_observer(
            _observer if selected or TorchObservers.present else None, _version
        )
        if wanted:
            watch(__name__)
        else:
            unwatch(__name__)


def _selects_user_ranges(entry: CallbackEntry) -> bool:
    return entry.enabled and entry.callback.check_scope(RecordScope.USER_SCOPE)


def expose_ranges_to_torch(exposed: bool) -> None:
    """Show ranges to PyTorch's observers from now on, or no longer."""
    with _lock:
        TorchObservers.present = exposed
        _set_global(_global_entries)  # a new version, because threads have left ranges unobserved
