"""The contract between the session and a sink."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from otel_recfn.model.batch import Batch

NO_MEMORY = (MemoryError, SystemError)
"""The errors of a failed allocation. In places numpy doesn't set the MemoryError, and Python then raises SystemError."""


class Sink(ABC):
    """A receiver of every sealed batch of a capture, in order, from one thread at a time.

    A sink that raises is closed, taken out of its capture and logged once; the other sinks go on. After a MemoryError it
    goes on too, and misses that batch; so a ``write`` that raises one counts nothing of the batch. It is given nothing twice.
    """

    name: str
    """A short and stable name, for log messages and as a prefix of the sink's counters."""
    wants_unsampled: bool = True
    """Whether it wants ranges in unsampled spans, which aren't recorded unless a sink of some capture does."""

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Take a batch, one for each drain, even if it is empty. Called on the drain thread: must not wait for the network."""

    @abstractmethod
    def flush(self, timeout_s: float) -> bool:
        """Make what was written visible at its destination; False if ``timeout_s`` seconds were not enough.

        From any thread, also while another one writes.
        """

    @abstractmethod
    def close(self, timeout_s: float) -> None:
        """Finish within ``timeout_s`` seconds, and count what had to be dropped. This is the last call."""

    def counters(self) -> Mapping[str, int]:
        """The counts of what it lost since it was made, as ``dropped.<reason>``; see ``model/counters.py``."""
        return {}

    def after_fork_in_child(self) -> Sink | None:
        """The sink for a forked child (a fresh one, sharing no file, lock or thread), or None for no sink."""
        return None
