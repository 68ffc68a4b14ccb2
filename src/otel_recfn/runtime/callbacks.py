"""The callbacks of the process and of the calling thread: add, remove, switch (source: ``at::addGlobalCallback`` and its kin).

    thread-local   only ranges of the thread that added them, and of work that ``ThreadLocalState`` carries elsewhere
    global         ranges of every thread

Lists are never changed, but replaced: a range that runs goes on with what it saw when it began. Threads keep what they work out
from the global list and compare one number, ``version()``, to see whether it still holds.

PyTorch's own operators come in through a ``Mirror``, which is told of every change.
"""

from __future__ import annotations

import copy
import itertools
import logging
import weakref
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

from otel_recfn.runtime import process_recorder, thread_locals
from otel_recfn.runtime.callback import RecordFunctionCallback
from otel_recfn.runtime.thread_locals import STALE, ThreadState
from otel_recfn.support.fork_safe_lock import ForkSafeLock

_logger = logging.getLogger("otel_recfn")

INVALID_CALLBACK_HANDLE = 0
"""No callback has this handle."""


class CallbackEntry(NamedTuple):
    """A callback as it was when it was added: changing the object afterwards changes nothing."""

    callback: RecordFunctionCallback
    handle: int
    """Unique in the process; callbacks run in its order."""
    enabled: bool = True


Entries: TypeAlias = tuple[CallbackEntry, ...]


class Mirror(Protocol):
    """Repeats the callbacks elsewhere: on PyTorch's RecordFunction.

    It is told of global changes one at a time, in their order, and of a thread's in that thread; it never raises.
    """

    def added(self, entry: CallbackEntry) -> None:
        """A global callback is there."""

    def removed(self, handle: int) -> None:
        """A global callback is gone; or a callback of any kind failed, and no thread may call it again."""

    def switched(self, handle: int, enabled: bool) -> None:
        """A global callback was disabled or reenabled."""

    def thread_changed(self, entries: Entries, enabled: bool) -> None:
        """The calling thread's own callbacks are these now, and RecordFunction is enabled in it or not."""

    def seeded(self, seed: int) -> None:
        """The calling thread's sampling starts anew from this seed."""

    def settle(self) -> None:
        """Callbacks were added. What takes long is done here, where the caller holds no lock of the runtime's."""


_lock = ForkSafeLock()
_handles = itertools.count(INVALID_CALLBACK_HANDLE + 1)
_version = 0
_global_entries: Entries = ()
_failed: set[int] = set()
_threads_with_callbacks: weakref.WeakSet[ThreadState] = weakref.WeakSet()
_mirror: Mirror | None = None


# --- adding, removing, switching


def add_global_callback(callback: RecordFunctionCallback) -> int:
    """Run ``callback`` on the ranges of all threads. Returns the handle by which to remove it.

    Raises:
        TypeError: it is no RecordFunctionCallback.
    """
    entry = _new_entry(callback)
    with _lock.held:
        _change_global(lambda entries: _sorted((*entries, entry)))
        if _mirror is not None:
            _mirror.added(entry)
    _settle()
    return entry.handle


def add_thread_local_callback(callback: RecordFunctionCallback) -> int:
    """Run ``callback`` on the ranges of this thread. Returns the handle by which this thread may remove it.

    Raises:
        TypeError: it is no RecordFunctionCallback.
    """
    entry = _new_entry(callback)
    state = thread_locals.current()
    install(state, _sorted((*state.callbacks, entry)), state.enabled)
    _settle()
    return entry.handle


def _new_entry(callback: RecordFunctionCallback) -> CallbackEntry:
    if not isinstance(callback, RecordFunctionCallback):
        raise TypeError(f"{callback!r} is no RecordFunctionCallback; pass RecordFunctionCallback(start, end)")
    return CallbackEntry(copy.copy(callback), next(_handles))


def _settle() -> None:
    if _mirror is not None:
        _mirror.settle()


def remove_callback(handle: int) -> None:
    """Remove a callback of this thread, or a global one. Open ranges still get its end. Other handles: nothing happens."""
    state = thread_locals.current()
    if _has(state.callbacks, handle):
        install(state, _without(state.callbacks, handle), state.enabled)
        return
    with _lock.held:
        if _has(_global_entries, handle):
            _change_global(lambda entries: _without(entries, handle))
            if _mirror is not None:
                _mirror.removed(handle)


def disable_callback(handle: int) -> None:
    """Stop running a callback of this thread, or a global one, until it is reenabled. Other handles: nothing happens."""
    _switch(handle, False)


def reenable_callback(handle: int) -> None:
    """Take back ``disable_callback``. Other handles: nothing happens."""
    _switch(handle, True)


def _switch(handle: int, enabled: bool) -> None:
    state = thread_locals.current()
    if _has(state.callbacks, handle):
        install(state, _switched(state.callbacks, handle, enabled), state.enabled)
        return
    with _lock.held:
        if _has(_global_entries, handle):
            _change_global(lambda entries: _switched(entries, handle, enabled))
            if _mirror is not None:
                _mirror.switched(handle, enabled)


def clear_global_callbacks() -> None:
    """Remove all global callbacks."""
    for entry in global_entries():
        remove_callback(entry.handle)


def clear_thread_local_callbacks() -> None:
    """Remove all callbacks of this thread."""
    state = thread_locals.current()
    install(state, (), state.enabled)


def clear_callbacks() -> None:
    """Remove all global callbacks and those of this thread."""
    clear_global_callbacks()
    clear_thread_local_callbacks()


# --- asking


def has_global_callbacks() -> bool:
    """Whether a global callback is there and enabled."""
    return _any_enabled(_global_entries)


def has_thread_local_callbacks() -> bool:
    """Whether this thread has a callback of its own that is enabled."""
    return _any_enabled(thread_entries(thread_locals.current()))


def has_callbacks() -> bool:
    """Whether ranges of this thread may run a callback."""
    return has_global_callbacks() or has_thread_local_callbacks()


def version() -> int:
    """Another number after every change of the global callbacks. Read it before them."""
    return _version


def global_entries() -> Entries:
    """The global callbacks, in the order of their handles."""
    return _global_entries


def thread_entries(state: ThreadState) -> Entries:
    """The callbacks of ``state``, which is the calling thread's, without those that failed since, maybe in another thread."""
    if _failed and any(entry.handle in _failed for entry in state.callbacks):
        install(state, tuple(entry for entry in state.callbacks if entry.handle not in _failed), state.enabled)
    return state.callbacks


# --- the calling thread as a whole


def install(state: ThreadState, entries: Entries, enabled: bool) -> None:
    """Make these the calling thread's callbacks and its flag. ``state`` is that thread's."""
    if entries is state.callbacks and enabled == state.enabled:
        return
    if enabled != state.enabled:
        process_recorder.recorder.set_thread_enabled(enabled)
    state.callbacks, state.enabled = entries, enabled
    _draw_anew(state)
    with _lock.held:
        (_threads_with_callbacks.add if _any_enabled(entries) else _threads_with_callbacks.discard)(state)
        watch_ranges()
        if _mirror is not None:
            _mirror.thread_changed(entries, enabled)


def seed(state: ThreadState, value: int) -> None:
    """Draw the calling thread's samples anew from ``value``: the same again after the same seed."""
    state.generator.seed(value)
    _draw_anew(state)
    with _lock.held:
        if _mirror is not None:
            _mirror.seeded(value)


def _draw_anew(state: ThreadState) -> None:
    state.version = STALE
    process_recorder.recorder.take_back_unobserved()


# --- ranges of record_function


def watch_ranges() -> None:
    """``record_function`` goes through RecordFunction while a callback may want its ranges, and only then."""
    from otel_recfn.runtime.record_function import observe_range

    with _lock.held:
        wanted = _any_enabled(_global_entries) or len(_threads_with_callbacks) > 0
        process_recorder.recorder.set_range_observer(observe_range if wanted else None, _version)


# --- failures


def failed(handle: int, error: BaseException) -> None:
    """A callback raised: it is removed, in every thread, and that is logged. A second failure of it changes nothing."""
    with _lock.held:
        if handle in _failed:
            return
        _failed.add(handle)
        _change_global(lambda entries: _without(entries, handle))
        if _mirror is not None:
            _mirror.removed(handle)
        thread_entries(thread_locals.current())
    _logger.warning("RecordFunction callback %d raised and was removed; the program goes on without it", handle, exc_info=error)


def has_failed(handle: int) -> bool:
    """Whether this callback raised and must not be called again."""
    return handle in _failed


# --- the mirror


def set_mirror(mirror: Mirror | None) -> Mirror | None:
    """Tell ``mirror`` of the global callbacks, of the calling thread's, and of every change from now on.

    Returns the mirror that was set before; it is told nothing more.
    """
    global _mirror
    state = thread_locals.current()
    with _lock.held:
        before, _mirror = _mirror, mirror
        if mirror is not None:
            for entry in _global_entries:
                mirror.added(entry)
                if not entry.enabled:
                    mirror.switched(entry.handle, False)
            mirror.thread_changed(thread_entries(state), state.enabled)
    _settle()
    return before


# --- changing lists


def _change_global(change: Callable[[Entries], Entries]) -> None:
    """Under the lock. A finalizer or signal handler of this very thread may do the same in between: then once more."""
    global _global_entries, _version
    while True:
        before = _global_entries
        after = change(before)
        if _global_entries is before:
            _global_entries = after
            _version += 1
            break
    watch_ranges()


def _sorted(entries: Entries) -> Entries:
    return tuple(sorted(entries, key=lambda entry: entry.handle))


def _has(entries: Entries, handle: int) -> bool:
    return any(entry.handle == handle for entry in entries)


def _without(entries: Entries, handle: int) -> Entries:
    return tuple(entry for entry in entries if entry.handle != handle)


def _switched(entries: Entries, handle: int, enabled: bool) -> Entries:
    return tuple(entry._replace(enabled=enabled) if entry.handle == handle else entry for entry in entries)


def _any_enabled(entries: Entries) -> bool:
    return any(entry.enabled for entry in entries)
