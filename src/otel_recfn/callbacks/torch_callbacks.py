"""Repeats the callbacks on PyTorch's RecordFunction, so that PyTorch's own operators call them.

Each callback becomes a callback of PyTorch's, which decides about scopes, sampling and switches in C++. The library that does
it is built and loaded once there is a callback and torch is imported; before that nothing is paid.

One thing is lost because the library comes late: callbacks that another thread than the one that imports torch had added for
itself before. They reach operators from that thread's next change of its callbacks on.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque

from otel_recfn.callbacks.callback import CallbackEntry, Entries
from otel_recfn.callbacks.library import SLOTS, Library, Report, load
from otel_recfn.model.errors import RecfnError
from otel_recfn.model.events import scopes_mask
from otel_recfn.pytorch.late_import import when_torch_is_imported
from otel_recfn.support.forks import ForkSafeLock

log = logging.getLogger("otel_recfn")


class TorchCallbacks:
    """Is told of global changes one at a time, in their order, and of a thread's in that thread; it never raises.

    Args:
        report: see ``library.Report``.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._lock, self._loading = ForkSafeLock(), ForkSafeLock()
        self._library: Library | None = None
        self._asked_for = False
        self._warned = False
        self._global: dict[int, CallbackEntry] = {}
        self._local = ThreadLists()

    # --- what the registry says

    def added(self, entry: CallbackEntry) -> None:
        """A global callback is there."""
        with self._lock:
            self._global[entry.handle] = entry
            if self._library is not None:
                self._remove_unused()
                self._add(entry, is_global=True)

    def removed(self, handle: int) -> None:
        """A global callback is gone; or a callback of any kind failed, and no thread may call it again."""
        with self._lock:
            was_global = self._global.pop(handle, None) is not None
            if self._library is not None:
                (self._library.remove if was_global else self._library.fail)(handle)

    def switched(self, handle: int, enabled: bool) -> None:
        """A global callback was disabled or reenabled."""
        with self._lock:
            self._global[handle] = self._global[handle]._replace(enabled=enabled)
            if self._library is not None:
                self._library.switch_global(handle, enabled)

    def thread_changed(self, entries: Entries) -> None:
        """The calling thread's own callbacks are these now."""
        with self._lock:
            self._local.set(entries)
            if self._library is not None:
                self._install_thread()

    def seeded(self, seed: int) -> None:
        """The calling thread's sampling starts anew from this seed."""
        if self._library is not None:
            self._library.seed(seed)

    # --- the library

    def finish_adding(self) -> None:
        """Callbacks were added: load the library if that wasn't done. The caller holds no lock of ours, as this takes long.

        While another thread loads the library, this one waits, and then installs its own callbacks.
        """
        if self._library is not None or not self._in_use():
            return
        with self._loading:
            ask, self._asked_for = not self._asked_for, True
            if ask:
                from otel_recfn.pytorch import observer_build  # noqa: F401 - a thread of ours may load, and must not import

                when_torch_is_imported(self._load)
        with self._lock:
            if self._library is not None:
                self._install_thread()

    def _in_use(self) -> bool:
        with self._lock:
            return bool(self._global) or self._local.in_use()

    def _load(self) -> None:
        with self._loading:
            library = self._load_if_needed()
        if library is not None:
            self._go_on_with(library)

    def _load_if_needed(self) -> Library | None:
        if not self._in_use():  # all callbacks were removed before torch was imported
            self._asked_for = False
            return None
        try:
            return load(self._report)
        except (RecfnError, OSError) as error:
            log.warning(
                "Python callbacks do not see PyTorch's operators, only Python ranges: %s; then start the program again",
                error,
            )
            return None

    def _go_on_with(self, library: Library) -> None:
        with self._lock:
            self._library = library
            for entry in self._global.values():
                self._add(entry, is_global=True)
            self._install_thread()

    def _add(self, entry: CallbackEntry, *, is_global: bool) -> None:
        assert self._library is not None
        callback = entry.callback
        if self._library.add(
            entry.handle,
            is_global,
            callback.start(),
            callback.end(),
            callback.should_run(),
            scopes_mask(callback.scopes()),
            1.0 if callback.should_run() is not None else callback.sampling_prob(),
            callback.needs_inputs(),
            callback.needs_outputs(),
            callback.needs_ids(),
        ):
            if is_global and not entry.enabled:
                self._library.switch_global(entry.handle, False)
        elif not self._warned:
            self._warned = True
            log.warning(
                "more than %d callbacks: those added last see only Python ranges, none of PyTorch's operators; "
                "observe with fewer callbacks",
                SLOTS,
            )

    def _install_thread(self) -> None:
        """Make PyTorch's list of the calling thread's callbacks the same as ours."""
        assert self._library is not None
        handles = tuple(entry.handle for entry in self._local.of_this_thread() if entry.enabled)
        self._library.set_thread(handles)
        self._remove_unused()
        new = self._local.newly_used()
        for entry in new:
            self._add(entry, is_global=False)
        if new:
            self._library.set_thread(handles)

    def _remove_unused(self) -> None:
        """Free the slots of callbacks that no thread has any more."""
        assert self._library is not None
        for handle in self._local.no_longer_used():
            self._library.remove(handle)


class ThreadLists:
    """Each thread's own callbacks, and in how many threads each callback is. To be called under the lock of TorchCallbacks.

    Threads are counted, and not references to the callback, because a ThreadLocalState that is kept must not keep a slot.
    """

    def __init__(self) -> None:
        self._thread = threading.local()
        self._threads: Counter[int] = Counter()
        self._known: dict[int, CallbackEntry] = {}
        self._placed: set[int] = set()
        self._gone: deque[tuple[int, ...]] = deque()

    def set(self, entries: Entries) -> None:
        self._threads.update(entry.handle for entry in entries)
        self._known.update((entry.handle, entry) for entry in entries)
        self._thread.list = _ThreadList(entries, self._gone)  # the one before notes in _gone that it is replaced, as it goes
        self._forget_gone()

    def of_this_thread(self) -> Entries:
        found: _ThreadList | None = getattr(self._thread, "list", None)
        return found.entries if found is not None else ()

    def in_use(self) -> bool:
        self._forget_gone()
        return bool(self._known)

    def newly_used(self) -> list[CallbackEntry]:
        """Callbacks that are in a thread now, told once."""
        new = [entry for handle, entry in self._known.items() if handle not in self._placed]
        self._placed.update(entry.handle for entry in new)
        return new

    def no_longer_used(self) -> list[int]:
        """Those of them that are in no thread any more."""
        self._forget_gone()
        old = [handle for handle in self._placed if handle not in self._known]
        self._placed.difference_update(old)
        return old

    def _forget_gone(self) -> None:
        while self._gone:
            for handle in self._gone.popleft():
                self._threads[handle] -= 1
                if self._threads[handle] == 0:
                    del self._threads[handle], self._known[handle]


class _ThreadList:
    """A thread's list, which is destroyed with the thread, or when the thread has another list.

    Then it notes its callbacks in ``gone``, without a lock, because an object may be destroyed at any moment.
    """

    __slots__ = ("_gone", "entries")

    def __init__(self, entries: Entries, gone: deque[tuple[int, ...]]) -> None:
        self.entries, self._gone = entries, gone

    def __del__(self) -> None:
        if self.entries:
            self._gone.append(tuple(entry.handle for entry in self.entries))
