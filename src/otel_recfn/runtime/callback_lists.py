"""The list of global callbacks, the calling thread's own list, and who is told when one of them changes.

Each thread caches which callbacks run on its ranges, and compares one number, ``version()``, to see whether the cache is valid.

Two are told of changes: the recorder, which hands ranges of ``record_function`` to the range observer while a callback may want
them, and the ``Mirror``, which has PyTorch's own operators call the callbacks.
"""

from __future__ import annotations

import logging
import weakref

from otel_recfn.ranges.protocol import RangeObserver
from otel_recfn.recording.recorder import recorder
from otel_recfn.recording.watched import Watcher, Watching, unwatch, watch
from otel_recfn.runtime import carried, thread_locals
from otel_recfn.runtime.callback_entries import CallbackEntry, Entries, any_enabled, has, switched, with_entry, without
from otel_recfn.runtime.mirror import Mirror
from otel_recfn.runtime.other_observers import OtherObservers, Others
from otel_recfn.runtime.thread_locals import STALE, ThreadState
from otel_recfn.support.fork_safe_lock import ForkSafeLock

_logger = logging.getLogger("otel_recfn")

_lock = ForkSafeLock()
_watcher = Watcher()
_watching: Watching | None = None
_version = 0
_global_entries: Entries = ()
_failed: set[int] = set()
_threads_with_callbacks: weakref.WeakSet[ThreadState] = weakref.WeakSet()
_observer: RangeObserver | None = None
_mirror: Mirror | None = None


# --- the list of the process


def version() -> int:
    """A number that changes with the global callbacks. Read it before them, so that a change in between is noticed."""
    return _version


def global_entries() -> Entries:
    """The global callbacks, in the order of their handles."""
    return _global_entries


def add_global(entry: CallbackEntry) -> None:
    """Run it on the ranges of all threads. ``finish_adding`` has to be called afterwards."""
    with _lock:
        _set_global(with_entry(_global_entries, entry))
        if _mirror is not None:
            _mirror.added(entry)


def remove_global(handle: int) -> None:
    """Take a global callback away. Other handles: nothing happens."""
    with _lock:
        if has(_global_entries, handle):
            _set_global(without(_global_entries, handle))
            if _mirror is not None:
                _mirror.removed(handle)


def switch_global(handle: int, enabled: bool) -> None:
    """Enable or disable a global callback. Other handles: nothing happens."""
    with _lock:
        if has(_global_entries, handle):
            _set_global(switched(_global_entries, handle, enabled))
            if _mirror is not None:
                _mirror.switched(handle, enabled)


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
    entries = carried.look().callbacks
    if entries is not state.callbacks:
        _take_over(state, entries)
    if _failed and any(entry.handle in _failed for entry in entries):
        install(state, tuple([entry for entry in entries if entry.handle not in _failed]))
    return state.callbacks


def install(state: ThreadState, entries: Entries) -> None:
    """Make these the calling thread's callbacks. ``state`` is that thread's."""
    before = carried.look()
    if entries is before.callbacks:
        return
    carried.put(before._replace(callbacks=entries))
    _take_over(state, entries)
    with _lock:
        if _mirror is not None:
            _mirror.thread_changed(entries)


def _take_over(state: ThreadState, entries: Entries) -> None:
    state.callbacks = entries
    _draw_anew(state)
    with _lock:
        (_threads_with_callbacks.add if any_enabled(entries) else _threads_with_callbacks.discard)(state)
        watch_ranges()


def may_work_for_another() -> bool:
    """Whether a thread may have another one's callbacks at its next range."""
    return carried.is_handed_on() and len(_threads_with_callbacks) > 0


# --- the switch of the calling thread


def is_enabled() -> bool:
    """Whether RecordFunction is on in the calling thread: PyTorch's own switch, where that can be read."""
    on = thread_locals.torchs_switch()
    return recorder.thread_enabled() if on is None else on


def enable(enabled: bool) -> None:
    """Switch RecordFunction in the calling thread, in PyTorch too."""
    if enabled == is_enabled():
        return
    recorder.set_thread_enabled(enabled)
    if _mirror is not None:
        _mirror.switched_thread(enabled)


def seed(state: ThreadState, value: int) -> None:
    """Seed the calling thread's sampling: the same seed gives the same samples."""
    state.generator.seed(value)
    _draw_anew(state)
    with _lock:
        if _mirror is not None:
            _mirror.seeded(value)


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
        if _mirror is not None:
            _mirror.removed(handle)
        thread_entries(thread_locals.current())
        return True


def has_failed(handle: int) -> bool:
    """Whether this callback raised and must not be called again."""
    return handle in _failed


# --- who is told


def observe_ranges_with(observer: RangeObserver) -> None:
    """Hand ranges of ``record_function`` to ``observer`` while a callback may want them."""
    global _observer
    _observer = observer
    watch_ranges()


def watch_ranges() -> None:
    """Tell the recorder, and generated wrappers, whether a callback may want ranges."""
    global _watching
    with _lock:
        wanted = any_enabled(_global_entries) or len(_threads_with_callbacks) > 0
        observed = wanted or Others.told is not None
        recorder.set_range_observer(_observer if observed else None, _version)
        if wanted:
            _watching = watch(_watcher)
        else:
            unwatch(_watching)


def tell_others(told: OtherObservers | None) -> None:
    """From now on ranges are told to these observers too; None: to nobody else."""
    with _lock:
        Others.told = told
        _set_global(_global_entries)  # a new version, so that no thread leaves ranges unobserved that it begins now


def set_mirror(mirror: Mirror | None) -> Mirror | None:
    """Tell ``mirror`` of the global callbacks, of the calling thread's, and of every change from now on.

    Returns the mirror that was set before; it is told nothing more.
    """
    before = _exchange_mirror(mirror, thread_locals.current())
    if mirror is not None:
        carried.on_first_use(mirror.carries)
    finish_adding()
    return before


def _exchange_mirror(mirror: Mirror | None, state: ThreadState) -> Mirror | None:
    global _mirror
    with _lock:
        before, _mirror = _mirror, mirror
        if mirror is not None:
            for entry in _global_entries:
                mirror.added(entry)
                if not entry.enabled:
                    mirror.switched(entry.handle, False)
            mirror.thread_changed(thread_entries(state))
        return before


def finish_adding() -> None:
    """Callbacks were added: let the mirror do what takes long. The caller holds no lock."""
    if _mirror is not None:
        _mirror.finish_adding()
