"""Which callbacks each thread has of its own, and which of them are in any thread."""

from __future__ import annotations

import threading
from collections import Counter, deque

from otel_recfn.runtime.callback_entries import CallbackEntry, Entries


class ThreadLists:
    """Each thread's own callbacks, and in how many threads each callback is. To be called under the mirror's lock.

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
        self._thread.list = _ThreadList(
            entries, self._gone
        )  # the list before notes in ``_gone`` that it is replaced, as it is destroyed
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
