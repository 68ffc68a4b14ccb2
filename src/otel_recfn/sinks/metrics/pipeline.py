"""What became of ranges, and what waits, as metrics: values of instruments by one attribute, from the counters of a capture.

Counters of the SDK must never go back. Those of a capture begin anew with it, and some are sums of counts that are read one
after the other; so what was told is kept (``Told``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

_log = logging.getLogger(__name__)

Values = dict[tuple[str, str], int]
"""By instrument and attribute value."""


class Report(NamedTuple):
    """The counters of a capture and its recorder, by their public names."""

    counters: Mapping[str, int]
    losses: Mapping[str, int]
    """Those of them that say what was lost."""


class Counter(NamedTuple):
    """An instrument whose values are read from a report."""

    name: str
    unit: str
    description: str
    attribute: str
    values: Callable[[Report], Mapping[str, int]]


def ranges(report: Report) -> dict[str, int]:
    """What became of ranges, by outcome; one that the spans' counters don't know is left out."""
    counts = report.counters
    found = {
        "span": counts.get("spans.spans", 0) - sum([counts.get(name, 0) for name in _OF_NO_ROW]),
        "dropped": sum([counts.get(name, 0) for name in _DROPPED]),
    }
    outcomes = ("folded", "dropped_by_hook", "unsampled", "suppressed", "no_provider")
    found |= {name: counts[f"spans.{name}"] for name in outcomes if f"spans.{name}" in counts}
    if "unsampled" in found:
        found["unsampled"] += counts.get("recorder.unsampled", 0)
    return found


_OF_NO_ROW = ("spans.roots", "spans.summaries", "spans.open_ranges")
_DROPPED = (
    "recorder.dropped",
    "recorder.lost_in_drain",
    "spans.failed",
    "spans.missed",
    "spans.queue_dropped",
    "spans.abandoned",
)


def lost(report: Report) -> dict[str, int]:
    """Losses by the name of their counter."""
    return dict(report.losses)


def spans(report: Report) -> dict[str, int]:
    """What became of spans, by outcome; ``handed``: to processors whose exporters can't be watched."""
    names = {"exported": "spans.spans_exported", "failed": "spans.spans_failed", "handed": "spans.spans_handed"}
    return {outcome: report.counters[name] for outcome, name in names.items() if name in report.counters}


def queued_ranges(report: Report) -> dict[str, int]:
    """Ranges that wait for the thread of a sink."""
    suffix = ".queued"
    return {name.removesuffix(suffix): count for name, count in report.counters.items() if name.endswith(suffix)}


def queued_spans(report: Report) -> dict[str, int]:
    """Spans that exporters haven't taken yet."""
    pending = report.counters.get("spans.spans_pending")
    return {} if pending is None else {"exporters": pending}


COUNTERS = (
    Counter("recfn.ranges", "{range}", "What became of ranges.", "recfn.outcome", ranges),
    Counter("recfn.lost", "{event}", "What was lost, by the counter that says so.", "recfn.reason", lost),
    Counter("recfn.spans", "{span}", "What became of spans.", "recfn.outcome", spans),
)
QUEUES = (
    Counter("recfn.queue.ranges", "{range}", "Ranges that wait for a sink.", "recfn.queue", queued_ranges),
    Counter("recfn.queue.spans", "{span}", "Spans that exporters haven't taken yet.", "recfn.queue", queued_spans),
)


class Told:
    """What a capture's counters have come to since this was made, never less than before.

    Args:
        report: reads them. Without an error: what it raises is logged once, and they stay as they were.
        from_zero: they began with this; else what they are now doesn't count.
    """

    def __init__(self, report: Callable[[], Report], *, from_zero: bool) -> None:
        self._report: Callable[[], Report] | None = report
        self._before: Values = {}
        self._told: Values = {}
        self._failed = False
        self._before = {} if from_zero else self._read()

    def values(self) -> Values:
        """The counters, read now; as they were last, when this has ended."""
        for key, value in self._read().items():
            self._told[key] = max(self._told.get(key, 0), value - self._before.get(key, 0))
        return dict(self._told)

    def waiting(self, queue: Counter) -> Values:
        """What waits now."""
        return self._read((queue,))

    def end(self) -> None:
        """Read nothing any more."""
        self._report = None

    def _read(self, instruments: tuple[Counter, ...] = COUNTERS) -> Values:
        read = self._report
        try:
            report = read() if read is not None else None
        except Exception:
            report = None
            if not self._failed:
                self._failed = True
                _log.exception("otel-recfn: counters could not be read; metrics keep their last values")
        if report is None:
            return {}
        return {(each.name, value): count for each in instruments for value, count in each.values(report).items()}
