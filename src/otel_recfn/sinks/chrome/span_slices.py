"""The program's spans as slices: from begin to end if these are heard of (``heard_spans.py``),
otherwise around the ranges in them.

    thread    ┌ POST /train ───────────────────────────────┐   heard of: from its begin to its end
              │    ┌ load ───────┐                  ┌ ─ ─ ┐│   with operations in it or without
              │    │ aten::copy_ │     aten::mm     │     ││   ranges
    another       ┌ POST /train ────────┐                      not heard of: a slice per stretch in
                  │ aten::mm   aten::mm │                      which the thread worked for a span

In threads in which none is heard of, rows say which span was current when their outermost range
began. A slice lasts from the begin of the first row in its span to the end of the last one, so that
it nests in the ranges around these rows. While a task waits, the thread may work for another one,
whose rows end the stretch: slices of two tasks never overlap. When a stretch ends, a range that
began within it may still be open, as that of a task that waits. Event ids count a thread's begins,
so that a stretch without gaps has no such range. A stretch with a gap is an asynchronous event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from otel_recfn.model.batch import Batch, Track
from otel_recfn.sinks.chrome.heard_spans import HeardSpans, Key, SpanSlice
from otel_recfn.sinks.chrome.thread_runs import Rows, Run, find_runs
from otel_recfn.support.span_log import is_ours

MAX_DEPTH = 32
"""The maximum number of spans inside each other in the file."""
MAX_THREADS = 256
"""The maximum number of threads that are followed; their slices that aren't over are written again
with each batch.
"""
FindSpan = Callable[[int, int], Any]
Stretches = tuple[tuple[Key, Rows], ...]
"""The spans that are current in a thread, each inside the one before it, and the rows in each so
far.
"""


class SpanSlices:
    """The slices of each thread, as far as they are known.

    The object is replaced, never changed, so that one can go back.

    Args:
        find: the program's span with a trace id and a span id; None if it isn't known.
        threads: the threads with open stretches, by number.
        heard: what is heard of spans.
    """

    def __init__(
        self,
        find: FindSpan,
        threads: dict[int, tuple[Track, Stretches]] | None = None,
        heard: HeardSpans = HeardSpans(),  # noqa: B008 - it never changes
    ) -> None:
        self._find = find
        self._threads = threads or {}
        self._heard = heard

    def with_batch(self, batch: Batch) -> tuple[SpanSlices, list[SpanSlice]]:
        """The slices after a batch, and those that are over."""
        heard, over = self._heard.with_batch(batch)
        threads = dict(self._threads)
        for run in find_runs(batch):
            _, stretches = threads.pop(run.track.number, (run.track, ()))
            # Spans that begin in it would cross the stretch.
            if run.track.native_id in heard.threads:
                over += self._slices(run.track, stretches, None)
                continue
            keys = self._chain(stretches, run)
            count = 0
            while count < min(len(keys), len(stretches)) and stretches[count][0] == keys[count]:
                count += 1
            over += self._slices(run.track, stretches[count:], run)
            continued = [(key, rows.and_then(run.rows)) for key, rows in stretches[:count]]
            threads[run.track.number] = (
                run.track,
                (*continued, *[(key, run.rows) for key in keys[count:]]),
            )
        while len(threads) > MAX_THREADS:  # the one that did nothing for longest
            over += self._slices(*threads.pop(next(iter(threads))), None)
        return SpanSlices(self._find, threads, heard), over

    def open_slices(self) -> list[SpanSlice]:
        """The slices that are not over, as they are so far."""
        found = self._heard.open_slices()
        for track, stretches in self._threads.values():
            found += self._slices(track, stretches, None)
        return found

    def _slices(self, track: Track, stretches: Stretches, run: Run | None) -> list[SpanSlice]:
        """The slices of stretches, which the run, if there is one, has ended.

        A step has none, as it is a range, too.
        """
        found = []
        for inside, (key, rows) in enumerate(stretches):
            span = self._find(*key)
            nests = rows.last - rows.first + 1 == rows.number
            if is_ours(span):
                continue
            name = getattr(span, "name", None)
            parent_id = getattr(getattr(span, "parent", None), "span_id", 0)
            name = name if isinstance(name, str) and name else f"span {key[1]:016x}"
            found.append(
                SpanSlice(
                    key,
                    parent_id,
                    name,
                    track,
                    start_ns=rows.start_ns,
                    end_ns=rows.end_before(run, len(stretches) - inside),
                    nests=nests,
                )
            )
        return found

    def _chain(self, stretches: Stretches, run: Run) -> list[Key]:
        """The spans around a run, outermost first."""
        chain, parent = ([run.key], self._parent(run.key)) if run.key[1] else ([], None)
        while (
            parent is not None
            and len(chain) < MAX_DEPTH
            and parent not in chain
            and self._find(*parent) is not None
        ):
            chain.insert(0, parent)
            parent = self._parent(parent)
        if parent is None or parent in chain:
            return chain
        # The parent may be a range of ours, in the span that is open here.
        open_here = [key for key, _ in stretches if key[0] == run.key[0] and key not in chain]
        return [*[key for key in open_here if self._is_current(key, run.rows.start_ns)], *chain][
            -MAX_DEPTH:
        ]

    def _parent(self, key: Key) -> Key | None:
        parent = getattr(self._find(*key), "parent", None)
        return (parent.trace_id, parent.span_id) if parent is not None else None

    def _is_current(self, key: Key, time_ns: int) -> bool:
        """Whether the span is known, and had not ended by then."""
        span = self._find(*key)
        end_ns = getattr(span, "end_time", None)
        return span is not None and (end_ns is None or end_ns > time_ns)
