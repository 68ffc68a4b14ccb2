"""Callbacks by their handles: add, remove, switch, ask (source: ``at::addGlobalCallback`` and its kin).

thread-local   only ranges of the thread that added them, and of work that ``ThreadLocalState`` carries elsewhere
global         ranges of every thread
"""

from __future__ import annotations

import copy
import itertools

from otel_recfn.runtime import callback_lists, thread_locals
from otel_recfn.runtime.callback import RecordFunctionCallback
from otel_recfn.runtime.callback_entries import CallbackEntry, any_enabled, has, switched, with_entry, without
from otel_recfn.runtime.observed_ranges import observe_range

INVALID_CALLBACK_HANDLE = 0
"""No callback has this handle."""

_handles = itertools.count(INVALID_CALLBACK_HANDLE + 1)


def add_global_callback(callback: RecordFunctionCallback) -> int:
    """Run ``callback`` on the ranges of all threads. Returns the handle by which to remove it.

    Raises:
        TypeError: it is no RecordFunctionCallback.
    """
    entry = _new_entry(callback)
    callback_lists.add_global(entry)
    callback_lists.finish_adding()
    return entry.handle


def add_thread_local_callback(callback: RecordFunctionCallback) -> int:
    """Run ``callback`` on the ranges of this thread. Returns the handle by which this thread may remove it.

    Raises:
        TypeError: it is no RecordFunctionCallback.
    """
    entry = _new_entry(callback)
    state = thread_locals.current()
    callback_lists.install(state, with_entry(callback_lists.thread_entries(state), entry))
    callback_lists.finish_adding()
    return entry.handle


def _new_entry(callback: RecordFunctionCallback) -> CallbackEntry:
    if not isinstance(callback, RecordFunctionCallback):
        raise TypeError(f"{callback!r} is no RecordFunctionCallback; pass RecordFunctionCallback(start, end)")
    return CallbackEntry(copy.copy(callback), next(_handles))


def remove_callback(handle: int) -> None:
    """Remove a callback of this thread, or a global one. Open ranges still get its end. Other handles: nothing happens."""
    state = thread_locals.current()
    entries = callback_lists.thread_entries(state)
    if has(entries, handle):
        callback_lists.install(state, without(entries, handle))
    else:
        callback_lists.remove_global(handle)


def disable_callback(handle: int) -> None:
    """Stop running a callback of this thread, or a global one, until it is reenabled. Other handles: nothing happens."""
    _switch(handle, False)


def reenable_callback(handle: int) -> None:
    """Take back ``disable_callback``. Other handles: nothing happens."""
    _switch(handle, True)


def _switch(handle: int, enabled: bool) -> None:
    state = thread_locals.current()
    entries = callback_lists.thread_entries(state)
    if has(entries, handle):
        callback_lists.install(state, switched(entries, handle, enabled))
    else:
        callback_lists.switch_global(handle, enabled)


def clear_global_callbacks() -> None:
    """Remove all global callbacks."""
    for entry in callback_lists.global_entries():
        remove_callback(entry.handle)


def clear_thread_local_callbacks() -> None:
    """Remove all callbacks of this thread."""
    state = thread_locals.current()
    callback_lists.install(state, ())


def clear_callbacks() -> None:
    """Remove all global callbacks and those of this thread."""
    clear_global_callbacks()
    clear_thread_local_callbacks()


def has_global_callbacks() -> bool:
    """Whether a global callback is there and enabled."""
    return any_enabled(callback_lists.global_entries())


def has_thread_local_callbacks() -> bool:
    """Whether this thread has a callback of its own that is enabled."""
    return any_enabled(callback_lists.thread_entries(thread_locals.current()))


def has_callbacks() -> bool:
    """Whether ranges of this thread may run a callback."""
    return has_global_callbacks() or has_thread_local_callbacks()


callback_lists.observe_ranges_with(observe_range)
