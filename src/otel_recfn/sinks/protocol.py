"""The contract between the session and a sink."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from otel_recfn.model.batch import Batch

NO_MEMORY = (MemoryError, SystemError)
"""The errors of a failed allocation.

In places numpy returns without setting the MemoryError, and Python then raises SystemError. Without
it a sink that only found no memory is removed: in four of eight runs of ten seconds in which one
allocation in twenty failed, the Chrome trace ended so.
"""


class Sink(ABC):
    """A receiver of all batches of a capture, in order, from one thread at a time.

    A sink that raises is closed, removed from its capture and logged once; the other sinks
    continue. After a MemoryError the sink stays and misses that batch, which it never gets again:
    so a ``write`` that raises a MemoryError must count nothing of the batch.
    """

    name: str
    """A short and stable name, for log messages and as a prefix of the sink's counters."""
    wants_unsampled: bool = True
    """Whether it wants ranges in unsampled spans; they are recorded only if a sink of some capture
    wants them.
    """

    open_range_s: float | None = None
    """The number of seconds after which ``Batch.long_open`` has an open range; None: the capture's,
    which it is at most.
    """

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Take the batch of one drain, which may be empty.

        The drain thread calls it, so it must not wait for the network.
        """

    @abstractmethod
    def flush(self, timeout_s: float) -> bool:
        """Deliver everything that was written; False if ``timeout_s`` seconds were not enough.

        Called from any thread, also while another thread writes.
        """

    @abstractmethod
    def close(self, timeout_s: float) -> None:
        """Finish within ``timeout_s`` seconds, and count what was dropped.

        No other call follows.
        """

    def counters(self) -> Mapping[str, int]:
        """The number of rows that the sink lost since it was made, as ``dropped.<reason>``; see
        ``model/counters.py``.
        """
        return {}

    def after_fork_in_child(self) -> Sink | None:
        """The sink for a forked child: a new one that shares no file, lock or thread with this
        one; or None for no sink.
        """
        return None
