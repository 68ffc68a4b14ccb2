"""A recording that is kept in memory: a capture, and the store that it writes to."""

from __future__ import annotations

import threading

from otel_recfn import _native
from otel_recfn.batches.selection import Selected, Selection
from otel_recfn.batches.wall import Block
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventSource, Extra
from otel_recfn.pytorch import profilers
from otel_recfn.pytorch.called_objects import CalledObjects, call_captures
from otel_recfn.recording.types import PROFILE_BUFFER_BYTES
from otel_recfn.session.capture import Capture
from otel_recfn.session.session import process_session
from otel_recfn.sinks.in_memory import EventStore
from otel_recfn.support.seen_spans import RetainedSpans

STOP_SECONDS = 10.0
"""The maximum time that the program waits for rows that were recorded, as a recording ends or is
read."""


class KeptRecording:
    """The recording of a profile: it may begin several times, each time anew.

    Args:
        recorded: what is recorded.
        displayed: the part of it that the profile shows. A Chrome trace shows all.
        max_events: the maximum number of events that are kept, the newest ones.
    """

    def __init__(self, recorded: Selected, displayed: Selected, max_events: int) -> None:
        self._recorded = recorded
        self._displayed = displayed
        self._max_events = max_events
        self._is_running = False
        self._retained_spans: RetainedSpans | None = None
        """The program's spans, which a Chrome trace of it names whenever it is exported."""
        self.store = EventStore(max_events)
        self.capture: Capture | None = None
        """The capture that records, or that recorded last; None if none has begun."""
        self._block = Block(0, 0)
        """The block that is or was recorded; without an end while it runs."""
        self.called: CalledObjects | None = None
        """The modules and optimizers that were called; None if calls aren't recorded."""

    def begin(self) -> None:
        """Begin to record, with an empty store."""
        self.store = EventStore(self._max_events)
        self.capture = Capture(self._recorded, [self.store], buffer_bytes=PROFILE_BUFFER_BYTES)
        self._is_running = True
        try:
            if EventSource.PYTHON_CALL in self._displayed.sources:
                self.called = CalledObjects()
                call_captures.append(self.called)
            process_session().start(self.capture)
            self._retained_spans = self.capture.retained_spans
            if self._displayed.extras & Extra.MEMORY:
                profilers.keep_memory(self.capture)
            # The last statement: starting is no part of the block.
            self._block = Block(
                start_ns=_native.moment().unix_ns,
                end_ns=0,
                thread=threading.get_native_id(),
                thread_name=threading.current_thread().name,
            )
        except BaseException:
            self.finish()
            raise

    def finish(self) -> None:
        """End the recording, which stays readable. Does nothing if none runs."""
        if not self._is_running:
            return
        self._block = self._block._replace(
            end_ns=_native.moment().unix_ns, end_thread=threading.get_native_id()
        )
        if self.capture is not None:
            process_session().stop(self.capture, STOP_SECONDS)
            profilers.release_memory(self.capture)
        if self.called in call_captures:
            call_captures.remove(self.called)
        self._is_running = False

    def fetch(self) -> None:
        """Fetch the rows that were recorded up to now."""
        if self._is_running and self.capture is not None:
            process_session().flush(self.capture, STOP_SECONDS)

    @property
    def block(self) -> Block:
        """The block that was recorded; up to now while it runs."""
        if self._block.end_ns:
            return self._block
        return self._block._replace(end_ns=_native.moment().unix_ns)

    def rows(self) -> Batch:
        """The rows that were fetched, without those that only a Chrome trace shows."""
        rows = self.store.rows()
        if self._recorded == self._displayed:
            return rows
        return Selection(self._displayed).view(rows, last=True)
