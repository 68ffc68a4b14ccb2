"""The captures that run: what they ask for together, and the view that each has of a batch.

    one capture since the first    a batch is its view
    several                        each has a view of its own, made from batches that have copies of
                                   the open ranges (``batches/selection.py``)

A view is a copy, so that one is made only if a capture needs it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventSource, Extra
from otel_recfn.model.python_calls import common_choice
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES
from otel_recfn.session.capture import Capture
from otel_recfn.sources.protocol import Wanted


class Captures:
    """The captures that run, and what they ask for together.

    The session lets one thread at a time change them or deliver to them; any thread may read.
    """

    def __init__(self) -> None:
        self._running: list[Capture] = []
        self.need_views = False
        """Whether captures need views: there was more than one, or the only one wants less than
        is recorded for it.
        """
        self.ending: set[Capture] = set()
        """The captures that are being stopped, running or not."""

    def __iter__(self) -> Iterator[Capture]:
        return iter(list(self._running))

    def __contains__(self, capture: Capture) -> bool:
        return capture in self._running

    def __len__(self) -> int:
        return len(self._running)

    def is_check_due(self) -> bool:
        """Whether it is time to look for ranges that have been open for long.

        A look asks for copies of all open ranges, even if nothing else is drained, because a hang
        is silent.
        """
        now_s = time.monotonic()
        return any(capture.is_check_due(now_s) for capture in self)

    def begin(self, capture: Capture) -> bool:
        """Add the first capture; False if there are others."""
        if self._running:
            return False
        self.need_views = not capture.selected.is_all_that_is_recorded
        self._add(capture)
        return True

    def join(self, capture: Capture, batch: Batch | None, since_serial: int) -> None:
        """Add a capture beside others.

        Args:
            capture: the capture.
            batch: the batch that was last delivered to the others, with copies of open ranges;
                None: its drain failed.
            since_serial: the recorder's serial from before that drain.
        """
        if batch is not None:
            for other in self:
                if not self.need_views:
                    other.selection.continue_after(batch)
            capture.selection.start_after(batch, since_serial)
        self.need_views = True
        self._add(capture)
        for each in self:
            each.is_used = True

    def _add(self, capture: Capture) -> None:
        capture.begin_checks(time.monotonic())
        self._running.append(capture)

    def leave(self, capture: Capture) -> None:
        """Remove a capture, which gets no more batches. Nothing if it isn't there."""
        if capture in self._running:
            self._running.remove(capture)

    def deliver(self, batch: Batch, leaving: Capture | None, reports_open: bool = False) -> None:
        """Give each capture its view of a batch that was drained.

        Args:
            batch: the batch, with copies of open ranges if they are needed.
            leaving: a capture that gets open ranges as partial ones, as it ends.
            reports_open: whether captures report ranges that have been open for long.
        """
        check_s = time.monotonic() if reports_open else None
        for capture in self:
            copies = reports_open or capture.traces_calls
            view = partial(capture.selection.view, last=capture is leaving, copies=copies)
            capture.put(batch, view if self.need_views else None, check_s)
        # Only when all have queued it: a sink that is written to may drain, or end a capture.
        for capture in self:
            capture.deliver()

    @property
    def need_open_ranges(self) -> bool:
        """Whether captures need copies of the ranges that are open at each drain."""
        return self.need_views or any(capture.traces_calls for capture in self)

    @property
    def all_end(self) -> bool:
        """Whether every capture is being stopped, or there is none."""
        return all(capture in self.ending for capture in self)

    def wanted(self) -> Wanted | None:
        """The smallest selection that covers all captures, None without any.

        Captures that end show no new ranges.
        """
        captures = list(self)
        if not captures:
            return None
        scopes = 0
        extras = Extra.NONE
        sources = frozenset[EventSource]()
        for capture in captures:
            scopes |= capture.selected.scopes
            extras |= capture.selected.extras
            sources |= capture.selected.sources
        exposed = [
            capture.exposed
            for capture in captures
            if capture.exposed is not None and capture not in self.ending
        ]
        selections = [capture.selected for capture in captures]
        return Wanted(
            scopes=scopes,
            extras=extras,
            sources=sources,
            profilers=any(selected.profiler is not None for selected in selections),
            exposed=exposed[-1] if exposed else None,
            calls=common_choice(
                [
                    selected.calls
                    for selected in selections
                    if EventSource.PYTHON_CALL in selected.sources
                ]
            ),
        )

    @property
    def sampled_alone(self) -> bool:
        """Whether no capture has a use for ranges in unsampled spans, which may change while
        they run.
        """
        return not any(capture.wants_unsampled for capture in self)

    def buffer_bytes(self) -> int:
        """The largest buffer per thread that a capture asks for."""
        return max((capture.buffer_bytes for capture in self), default=DEFAULT_BUFFER_BYTES)
