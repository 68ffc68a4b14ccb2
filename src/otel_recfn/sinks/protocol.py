"""The contract between the session and a sink."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from otel_recfn.model.batch import Batch

NO_MEMORY = (MemoryError, SystemError)
"""What a failed allocation raises. In places numpy doesn't set the MemoryError, and Python then raises SystemError."""


class Sink(ABC):
    """Receives every sealed batch of a capture, in order, from one thread at a time.

    A sink that raises is closed, taken out of its capture and logged once; the other sinks go on. After a MemoryError it
    goes on too, and misses that batch; so a ``write`` that raises one counts nothing of the batch. It is given nothing twice.
    """

    name: str
    """Short and stable: it stands in log messages and before what the sink counts."""
    wants_unsampled: bool = True
    """It has a use for ranges in spans that are not sampled: where no sink has any, they are not recorded."""

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Take a batch, one for each drain, also where nothing is in it. Called on the drain thread: must not wait for the
        network."""

    @abstractmethod
    def flush(self, timeout_s: float) -> bool:
        """Make what was written visible where it goes; False when ``timeout_s`` seconds were not enough.

        From any thread, also while another one writes.
        """

    @abstractmethod
    def close(self, timeout_s: float) -> None:
        """The last call. Finish within ``timeout_s`` seconds, count what had to be given up."""

    def counters(self) -> Mapping[str, int]:
        """What it lost since it was made, as ``dropped.<reason>``; see ``model/counters.py``."""
        return {}

    def after_fork_in_child(self) -> Sink | None:
        """The sink that a forked child goes on with (a fresh one, sharing no file, lock or thread), or None for no sink."""
        return None
