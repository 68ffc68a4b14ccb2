"""The contract of whoever repeats the callbacks elsewhere."""

from __future__ import annotations

from typing import Protocol

from otel_recfn.runtime.callback_entries import CallbackEntry, Entries


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

    def thread_changed(self, entries: Entries) -> None:
        """The calling thread's own callbacks are these now."""

    def switched_thread(self, enabled: bool) -> None:
        """RecordFunction was switched in the calling thread."""

    def carries(self) -> None:
        """A thread has something now that could be handed on to what works for it (see ``carried``)."""

    def seeded(self, seed: int) -> None:
        """The calling thread's sampling starts anew from this seed."""

    def finish_adding(self) -> None:
        """Callbacks were added. What takes long is done here, where the caller holds no lock of the runtime's."""
