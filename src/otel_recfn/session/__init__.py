"""The process's one session, which whoever needs it first makes: what records, and for whom."""

from __future__ import annotations

from otel_recfn.pytorch import details
from otel_recfn.pytorch.late_import import when_imported
from otel_recfn.recording.recorder import recorder
from otel_recfn.session.session import Session
from otel_recfn.support.forks import ForkSafeLock
from otel_recfn.support.texts import add_control_flow

__all__ = ["Session", "process_session"]

_making = ForkSafeLock()
_session: Session | None = None


def process_session() -> Session:
    """The one session: the process has one recorder."""
    global _session
    with _making:
        if _session is None:
            stop = details.PYTHON["stopped_recomputation"]
            when_imported(stop.place[0], _know_stopped_recomputation, stop.lost)
            _session = Session(recorder)
        return _session


def _know_stopped_recomputation() -> None:
    """Activation checkpointing recomputes a block, and leaves it by an exception once it has what it needs."""
    stop = details.find("stopped_recomputation")
    if stop is not None:
        add_control_flow(stop)
