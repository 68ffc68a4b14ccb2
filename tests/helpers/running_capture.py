"""A capture that runs in a session of the test's own."""

from __future__ import annotations

from helpers.timeouts import PATIENCE_S
from otel_recfn.batches.selection import Selected
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES
from otel_recfn.session.capture import Capture
from otel_recfn.session.session import Session
from otel_recfn.sinks.in_memory import InMemorySink


class Running:
    """A capture that runs, and what it saw."""

    def __init__(self, session: Session, selected: Selected) -> None:
        self.sink = InMemorySink()
        self.session, self.capture = (
            session,
            Capture(selected, [self.sink], buffer_bytes=DEFAULT_BUFFER_BYTES),
        )
        session.start(self.capture)

    def stop(self) -> Running:
        self.session.stop(self.capture, PATIENCE_S)
        return self

    def names(self) -> list[str]:
        return [event.name for event in self.sink.events()]
