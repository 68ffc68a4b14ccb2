"""The callbacks of the process and those of the calling thread: added, removed, switched and asked for by their handles.

thread-local   only ranges of the thread that added them, and of work that ``ThreadLocalState`` carries elsewhere
global         ranges of every thread

(source: ``at::addGlobalCallback`` and its kin). Each thread caches which callbacks run on its ranges, and compares one number,
``version()``, to see whether the cache is valid.

Two are told of changes: the recorder, which hands ranges of ``record_function`` to the range observer while a callback may want
them, and ``TorchCallbacks``, which has PyTorch's own operators call the callbacks.
"""

from __future__ import annotations

import copy
import itertools
import logging
import weakref

from otel_recfn.callbacks import thread_locals
from otel_recfn.callbacks.callback import (
    CallbackEntry,
    Entries,
    RecordFunctionCallback,
    any_enabled,
    has,
    switched,
    with_entry,
    without,
)
from otel_recfn.callbacks.range_in_torch import Others, RangesInTorch
from otel_recfn.callbacks.thread_locals import STALE, ThreadState
from otel_recfn.callbacks.torch_callbacks import TorchCallbacks
from otel_recfn.recording.ranges import RangeObserver
from otel_recfn.recording.recorder import recorder
from otel_recfn.recording.watched import unwatch, watch
from otel_recfn.support.forks import ForkSafeLock
from otel_recfn.support.signal_handlers import raised_by_signal_handler

_logger = logging.getLogger("otel_recfn")

INVALID_CALLBACK_HANDLE = 0
"""No callback has this handle."""

_handles = itertools.count(INVALID_CALLBACK_HANDLE + 1)
_lock = ForkSafeLock()
_version = 0
_global_entries: Entries = ()
_failed: set[int] = set()
_threads_with_callbacks: weakref.WeakSet[ThreadState] = weakref.WeakSet()
_observer: RangeObserver | None = None


# --- by handle


def add_global_callback(callback: RecordFunctionCallback) -> int:
    """Run ``callback`` on the ranges of all threads. Returns the handle by which to remove it.

    Raises:
        TypeError: it is no RecordFunctionCallback.
    """
    entry = _new_entry(callback)
    with _lock:
        _set_global(with_entry(_global_entries, entry))
        _torch_callbacks.added(entry)
    _torch_callbacks.finish_adding()
    return entry.handle


def add_thread_local_callback(callback: RecordFunctionCallback) -> int:
    """Run ``callback`` on the ranges of this thread. Returns the handle by which this thread may remove it.

    Raises:
        TypeError: it is no RecordFunctionCallback.
    """
    entry = _new_entry(callback)
    state = thread_locals.current()
    install(state, with_entry(thread_entries(state), entry))
    _torch_callbacks.finish_adding()
    return entry.handle


def _new_entry(callback: RecordFunctionCallback) -> CallbackEntry:
    if not isinstance(callback, RecordFunctionCallback):
        raise TypeError(f"{callback!r} is no RecordFunctionCallback; pass RecordFunctionCallback(start, end)")
    return CallbackEntry(copy.copy(callback), next(_handles))


def remove_callback(handle: int) -> None:
    """Remove a callback of this thread, or a global one. Open ranges still get its end. Other handles: nothing happens."""
    state = thread_locals.current()
    entries = thread_entries(state)
    if has(entries, handle):
        install(state, without(entries, handle))
        return
    with _lock:
        if has(_global_entries, handle):
            _set_global(without(_global_entries, handle))
            _torch_callbacks.removed(handle)


def disable_callback(handle: int) -> None:
    """Stop running a callback of this thread, or a global one, until it is reenabled. Other handles: nothing happens."""
    _switch(handle, False)


def reenable_callback(handle: int) -> None:
    """Take back ``disable_callback``. Other handles: nothing happens."""
    _switch(handle, True)


def _switch(handle: int, enabled: bool) -> None:
    state = thread_locals.current()
    entries = thread_entries(state)
    if has(entries, handle):
        install(state, switched(entries, handle, enabled))
        return
    with _lock:
        if has(_global_entries, handle):
            _set_global(switched(_global_entries, handle, enabled))
            _torch_callbacks.switched(handle, enabled)


def clear_global_callbacks() -> None:
    """Remove all global callbacks."""
    for entry in _global_entries:
        remove_callback(entry.handle)


def clear_thread_local_callbacks() -> None:
    """Remove all callbacks of this thread."""
    install(thread_locals.current(), ())


def clear_callbacks() -> None:
    """Remove all global callbacks and those of this thread."""
    clear_global_callbacks()
    clear_thread_local_callbacks()


def has_global_callbacks() -> bool:
    """Whether a global callback is there and enabled."""
    return any_enabled(_global_entries)


def has_thread_local_callbacks() -> bool:
    """Whether this thread has a callback of its own that is enabled."""
    return any_enabled(thread_entries(thread_locals.current()))


def has_callbacks() -> bool:
    """Whether ranges of this thread may run a callback."""
    return has_global_callbacks() or has_thread_local_callbacks()


# --- the list of the process


def version() -> int:
    """A number that changes with the global callbacks. Read it before them, so that a change in between is noticed."""
    return _version


def global_entries() -> Entries:
    """The global callbacks, in the order of their handles."""
    return _global_entries


def _set_global(entries: Entries) -> None:
    """Call it under the lock."""
    global _global_entries, _version
    _global_entries = entries
    _version += 1
    watch_ranges()


# --- the list of the calling thread


def thread_entries(state: ThreadState) -> Entries:
    """The callbacks of the calling thread, whose ``state`` this is, without those that failed, here or in another thread.

    In a thread that works for another one they are that one's.
    """
    entries = thread_locals.look().callbacks
    if entries is not state.callbacks:
        _take_over(state, entries)
    if _failed and any(entry.handle in _failed for entry in entries):
        install(state, tuple([entry for entry in entries if entry.handle not in _failed]))
    return state.callbacks


def install(state: ThreadState, entries: Entries) -> None:
    """Make these the calling thread's callbacks. ``state`` is that thread's."""
    before = thread_locals.look()
    if entries is before.callbacks:
        return
    thread_locals.put(before._replace(callbacks=entries))
    _take_over(state, entries)
    with _lock:
        _torch_callbacks.thread_changed(entries)


def _take_over(state: ThreadState, entries: Entries) -> None:
    state.callbacks = entries
    _draw_anew(state)
    with _lock:
        (_threads_with_callbacks.add if any_enabled(entries) else _threads_with_callbacks.discard)(state)
        watch_ranges()


def may_work_for_another() -> bool:
    """Whether a thread may have another one's callbacks at its next range."""
    return thread_locals.is_handed_on() and len(_threads_with_callbacks) > 0


def seed(state: ThreadState, value: int) -> None:
    """Seed the calling thread's sampling: the same seed gives the same samples."""
    state.generator.seed(value)
    _draw_anew(state)
    with _lock:
        _torch_callbacks.seeded(value)


def _draw_anew(state: ThreadState) -> None:
    state.version = STALE
    recorder.take_back_unobserved()


# --- callbacks that failed


def failed(handle: int, error: BaseException, name: str = "") -> None:
    """A callback raised, on the range ``name``: it is removed, in every thread, and that is logged.

    A second failure of it changes nothing.
    """
    if not _remove_failed(handle):
        return
    where = f" (on the range {name!r})" if name else ""
    message = "RecordFunction callback %d raised and was removed%s; the program goes on without it"
    _logger.warning(message, handle, where, exc_info=error)


def _remove_failed(handle: int) -> bool:
    """Whether it was there."""
    with _lock:
        if handle in _failed:
            return False
        _failed.add(handle)
        _set_global(without(_global_entries, handle))
        _torch_callbacks.removed(handle)
        thread_entries(thread_locals.current())
        return True


def has_failed(handle: int) -> bool:
    """Whether this callback raised and must not be called again."""
    return handle in _failed


def _failed_in_torch(handle: int, error: BaseException, name: str) -> bool:
    """A callback raised on a range of PyTorch's. What a signal handler raised in it goes on to the program."""
    if not isinstance(error, (Exception, SystemExit)) or raised_by_signal_handler(error):
        return True
    failed(handle, error, name)
    return False


_torch_callbacks = TorchCallbacks(_failed_in_torch)


# --- who is told


def observe_ranges_with(observer: RangeObserver) -> None:
    """Hand ranges of ``record_function`` to ``observer`` while a callback may want them."""
    global _observer
    _observer = observer
    watch_ranges()


def watch_ranges() -> None:
    """Tell the recorder, and generated wrappers, whether a callback may want ranges."""
    with _lock:
        wanted = any_enabled(_global_entries) or len(_threads_with_callbacks) > 0
        observed = wanted or Others.told is not None
        recorder.set_range_observer(_observer if observed else None, _version)
        if wanted:
            watch(__name__)
        else:
            unwatch(__name__)


def tell_others(told: RangesInTorch | None) -> None:
    """From now on ranges are told to PyTorch's observers too; None: no more."""
    with _lock:
        Others.told = told
        _set_global(_global_entries)  # a new version, so that no thread leaves ranges unobserved that it begins now
