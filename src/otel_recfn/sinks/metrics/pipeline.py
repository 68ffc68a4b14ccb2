"""What became of ranges, and what waits, as metrics: values of instruments by one attribute, from the counters of a capture.

Counters of the SDK must never go back. Those of a capture begin anew with it, and some are sums of counts that are read one
after the other; so what was told is kept (``Told``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from otel_recfn.model.counters import DROPPED, SETTLED, losses

_log = logging.getLogger(__name__)

Values = dict[tuple[str, str], int]
"""By instrument and attribute value."""
Report = Mapping[str, int]
"""The counters of a capture, by their public names."""


class Counter(NamedTuple):
    """An instrument whose values are read from a report."""

    name: str
    unit: str
    description: str
    attribute: str
    values: Callable[[Report], Mapping[str, int]]


def ranges(report: Report) -> dict[str, int]:
    """What became of ranges, by outcome."""
    found = {name: report[name] for name in SETTLED if name in report}
    return {**found, "dropped": sum(report.get(name, 0) for name in DROPPED)}


def waiting(report: Report) -> dict[str, int]:
    """What exporters haven't taken yet."""
    return {"spans": report["waiting"]} if "waiting" in report else {}


COUNTERS = (
    Counter("recfn.ranges", "{range}", "What became of ranges, and of added spans.", "recfn.outcome", ranges),
    Counter("recfn.lost", "{range}", "What was lost, by the counter that says so.", "recfn.reason", losses),
)
QUEUES = (Counter("recfn.queue.size", "{range}", "What exporters haven't taken yet.", "recfn.queue", waiting),)


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
