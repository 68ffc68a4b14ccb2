"""Ranges that a trace writes as two events, a begin and an end.

    b  e    matched by their ids, as they come
    B  E    an end is that of the range that began last in its thread: matched when all are known,
            as a thread's events may stand in any order

A range without an end was open when the trace ended.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn.report.traces.unread_events import UnreadEvents

NO_ROW = -1


class TwoEventRanges:
    """The ends of ranges that are written as two events, by row."""

    def __init__(self) -> None:
        self._open: dict[Any, int] = {}
        """The rows of asynchronous ranges that have not ended, by their ids."""
        self._halves: list[tuple[int, int, int]] = []
        """The thread, the time and the row of each begin; NO_ROW for an end."""
        self.end_ns: dict[int, int] = {}
        """The ends that are known."""

    def begin_async(self, event: dict[str, Any], row: int) -> None:
        """Add the begin of an asynchronous range."""
        self._open[_async_id(event)] = row

    def end_async(self, event: dict[str, Any], ns: int) -> None:
        """Add the end of an asynchronous range.

        Raises:
            KeyError: it didn't begin.
        """
        self.end_ns[self._open.pop(_async_id(event))] = ns

    def begin(self, thread: int, ns: int, row: int) -> None:
        """Add the begin of a range."""
        self._halves.append((thread, ns, row))

    def end(self, thread: int, ns: int) -> None:
        """Add the end of the range that is innermost in a thread."""
        self._halves.append((thread, ns, NO_ROW))

    def match(self, latest_ns: int, unread: UnreadEvents) -> NDArray[np.int64]:
        """Match ends with begins, and return the rows that have no end: they were open when the
        trace ended, and so end at its latest time.

        Args:
            latest_ns: the latest time of other events.
            unread: it counts the ends without a begin.
        """
        thread, at, row = np.array(self._halves, np.int64).reshape(-1, 3).T
        order = np.lexsort((at, thread))
        in_order = [column[order].tolist() for column in (thread, at, row)]
        open_rows: list[int] = []
        unfinished: list[int] = []
        last = -1
        for number, ns, begun in zip(*in_order, strict=True):
            if number != last:
                last = number
                unfinished += open_rows
                open_rows.clear()
            if begun != NO_ROW:
                open_rows.append(begun)
            elif open_rows:
                self.end_ns[open_rows.pop()] = ns
            else:
                unread.add("without a begin")
        unfinished += open_rows
        self.end_ns |= dict.fromkeys(unfinished, max(latest_ns, int(at.max(initial=0))))
        return np.array(unfinished, np.int64)


def _async_id(event: dict[str, Any]) -> tuple[str, str]:
    local = event.get("id2")
    return str(event.get("pid")), str(local if local is not None else event.get("id"))
