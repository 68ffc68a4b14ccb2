"""The running captures: what they ask for together, and which view of a drained batch each of them gets.

As long as only one capture has run, what was recorded is its view. When others have joined it, each gets a view of its own,
made from batches that have copies of the open ranges (``batches/selection.py``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventSource, Extra
from otel_recfn.model.python_calls import together
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES
from otel_recfn.session.capture import Capture
from otel_recfn.sources.protocol import Wanted

LOOKS = 4
"""So often it is looked for open ranges within the time after which one is told."""


class Captures:
    """The session lets one thread at a time change them or deliver to them; any thread may read."""

    def __init__(self) -> None:
        self._running: list[Capture] = []
        self.need_views = False
        """Whether each sees its own part of what is drained, for which that has copies of open ranges: there was more than one
        capture, or the only one wants less than is recorded for it."""
        self.alone = True
        """Whether there has never been another one beside the one that began first, of those that run or ran last."""
        self.ending: set[Capture] = set()
        """Those that are being stopped, running or not."""
        self._looked_s = time.monotonic()

    def __iter__(self) -> Iterator[Capture]:
        return iter(list(self._running))

    def __contains__(self, capture: Capture) -> bool:
        return capture in self._running

    def __len__(self) -> int:
        return len(self._running)

    def is_look_due(self) -> bool:
        """Whether to look now for ranges that have been open for long, which a capture wants to be told of.

        A look asks for copies of all open ranges. It is done also where nothing else is drained: a hang is silent.
        """
        shortest = min((capture.open_range_s for capture in self if capture.open_range_s is not None), default=None)
        return shortest is not None and time.monotonic() - self._looked_s >= shortest / LOOKS

    def looked(self) -> None:
        """A look is done."""
        self._looked_s = time.monotonic()

    def begin(self, capture: Capture) -> bool:
        """Add the first capture; False where others are there."""
        if self._running:
            return False
        self.need_views, self.alone = not capture.selected.is_all_that_is_recorded, True
        self._running.append(capture)
        return True

    def join(self, capture: Capture, batch: Batch | None, since_serial: int) -> None:
        """Add a capture beside others.

        Args:
            capture: to add.
            batch: delivered to those, with copies of open ranges; None: its drain failed.
            since_serial: the recorder's, from before that drain.
        """
        if batch is not None:
            for other in self:
                if not self.need_views:
                    other.selection.go_on_after(batch)
            capture.selection.begin_after(batch, since_serial)
        self.need_views, self.alone = True, False
        self._running.append(capture)

    def leave(self, capture: Capture) -> None:
        """Remove a capture, if it is there: it gets no more batches."""
        if capture in self._running:
            self._running.remove(capture)

    def deliver(self, batch: Batch, leaving: Capture | None, look: bool = False) -> None:
        """Hand each capture what it sees of a batch that was drained.

        Args:
            batch: the batch.
            leaving: a capture that ends: it also gets the open ranges, as partial ones.
            look: captures are told which ranges are open for long.
        """
        for capture in self:
            view = partial(capture.selection.view, last=capture is leaving, copies=look) if self.need_views else None
            capture.put(batch, view, look)
        for capture in self:  # after all have it in their queues: a sink that is written to may drain, or end a capture
            capture.deliver()

    def after_fork_in_child(self) -> None:
        """In a child: the captures go on with sinks of the child's own."""
        for capture in self:
            capture.after_fork_in_child()

    @property
    def all_end(self) -> bool:
        """Whether each is being stopped, or there is none."""
        return all(capture in self.ending for capture in self)

    def wanted(self) -> Wanted | None:
        """The smallest selection with all that they ask for, None without any; ranges of those that end are no longer shown."""
        if not self:
            return None
        scopes, extras, sources, profilers, shown = 0, Extra.NONE, frozenset[EventSource](), False, None
        for capture in self:
            asked = capture.selected
            scopes, extras, sources = scopes | asked.scopes, extras | asked.extras, sources | asked.sources
            profilers = profilers or asked.profiler is not None
            shown = capture.shown if capture.shown is not None and capture not in self.ending else shown
        calls = together([each.selected.calls for each in self if EventSource.PYTHON_CALL in each.selected.sources])
        told = any(capture.tells_of_spans for capture in self)
        return Wanted(scopes, extras, sources, profilers, shown, self.sampled_alone, calls, told)

    @property
    def sampled_alone(self) -> bool:
        """Whether none has a use for ranges in spans that are not sampled, which may change while they run."""
        return not any(capture.wants_unsampled for capture in self)

    def buffer_bytes(self) -> int:
        """The largest buffer per thread that one of them asks for."""
        return max((capture.buffer_bytes for capture in self), default=DEFAULT_BUFFER_BYTES)
