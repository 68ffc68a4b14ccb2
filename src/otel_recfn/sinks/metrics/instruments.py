"""The instruments on one meter, for as long as the meter lives: the SDK forgets no instrument, and
takes no second callback.

    a reader collects ──► callback ──► sums of durations to every reader's histogram (SdkStreams)
                                   └─► counters as they are

Sinks come and go (``attach``, ``detach``). What a sink leaves behind goes to the readers when one
of them collects next, and its counters are kept, because those of a metric never go back.

A callback's thread holds locks of the SDK's: it waits for no fork, but a fork for it, and during
one it gives nothing.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, NoOpMeter, NoOpMeterProvider, Observation

from otel_recfn.model.counters import DROPPED, SETTLED, losses
from otel_recfn.model.events import RecordScope
from otel_recfn.sinks.metrics.sdk_streams import (
    OVERFLOW_ATTRIBUTES,
    Attributes,
    ChangedSdkError,
    CollectedSums,
    SdkStreams,
)
from otel_recfn.sinks.metrics.sums import Series
from otel_recfn.sinks.spans.span_target import SCHEMA_URL
from otel_recfn.support.foreign import WeakIdentityMap
from otel_recfn.support.forks import ForkSafeLock, Order, around_forks, at_work_unless_forking
from otel_recfn.support.interruptions import raised_by_signal_handler
from otel_recfn.support.logs import GuardedLog
from otel_recfn.support.span_log import SCOPE_NAME
from otel_recfn.version import __version__

DURATION = "recfn.operation.duration"
BOUNDS = (
    1e-6,
    2e-6,
    5e-6,
    1e-5,
    2e-5,
    5e-5,
    1e-4,
    2e-4,
    5e-4,
    1e-3,
    2e-3,
    5e-3,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    10.0,
)
"""The bounds of buckets in seconds, unless a view has others."""

_PROXY: Any = getattr(getattr(metrics, "_internal", None), "_ProxyMeterProvider", NoOpMeterProvider)
"""The placeholder for the global provider until it is set."""
_log = GuardedLog(logging.getLogger(__name__), {})

Values = dict[tuple[str, str], int]
"""Values by instrument and attribute value."""
Report = Mapping[str, int]
"""A function that reads the counters of a capture, by their public names."""
Feed: TypeAlias = "Callable[[], list[CollectedSums]]"
"""A sink's ``take``: sums of durations since the last time."""


class Counter(NamedTuple):
    """An instrument whose values are read from a report, by one attribute."""

    name: str
    description: str
    attribute: str
    values: Callable[[Report], Mapping[str, int]]


def _outcomes(report: Report) -> dict[str, int]:
    found = {name: report[name] for name in SETTLED if name in report}
    return {**found, "dropped": sum(report.get(name, 0) for name in DROPPED)}


def _waiting(report: Report) -> dict[str, int]:
    return {"spans": report["waiting"]} if "waiting" in report else {}


COUNTERS = (
    Counter(
        "recfn.ranges", "What became of ranges, and of added spans.", "recfn.outcome", _outcomes
    ),
    Counter("recfn.lost", "What was lost, by the counter that says so.", "recfn.reason", losses),
)
QUEUE = Counter("recfn.queue.size", "What exporters haven't taken yet.", "recfn.queue", _waiting)


class _CaptureCounters:
    """The counters of a capture, which never go back.

    Counters of the SDK must never go back. Those of a capture begin anew with it, and some are sums
    of counts that are read one after the other; so the values that were read are kept.
    """

    def __init__(self, report: Callable[[], Report]) -> None:
        self.report = report
        self.last: Values = {}
        """The counters as they were read last."""

    def read(self) -> Values:
        """The counters, read now, never less than before."""
        for key, value in _values(self.report(), *COUNTERS).items():
            self.last[key] = max(self.last.get(key, 0), value)
        return dict(self.last)


def _values(report: Report, *instruments: Counter) -> Values:
    return {
        (each.name, value): count
        for each in instruments
        for value, count in each.values(report).items()
    }


class Instruments:
    """The instruments of a meter, of the SDK's or another one, made once by ``get_instruments``."""

    def __init__(self, meter: Meter) -> None:
        self._lock = ForkSafeLock()
        self._feeds: dict[Feed, _CaptureCounters] = {}
        self._left: list[CollectedSums] = []
        self._ended: Values = {}
        self._streams: SdkStreams | None = None
        self._changed = False
        """Whether the SDK is not one that we know: then nobody takes durations any more."""
        description = "How long operators and ranges took."
        self._histogram = meter.create_histogram(
            DURATION, "s", description, explicit_bucket_boundaries_advisory=BOUNDS
        )
        for each in COUNTERS:
            meter.create_observable_counter(
                each.name, [partial(self._observe, each)], "{range}", each.description
            )
        meter.create_observable_up_down_counter(
            QUEUE.name, [partial(self._observe, QUEUE)], "{range}", QUEUE.description
        )
        around_forks(Order.RECORDER, in_child=self.after_fork_in_child)

    def streams(self) -> SdkStreams | None:
        """The streams that take durations now; None if nobody takes them.

        Not to be called from a callback.
        """
        try:
            if not self._changed and (self._streams is None or not self._streams.are_current):
                self._streams = SdkStreams(self._histogram)
        except ChangedSdkError as error:
            self._log_change(error)
        return self._streams if self._streams is not None and self._streams.are_used else None

    def attach(self, feed: Feed, report: Callable[[], Report]) -> None:
        """Ask a sink from now on. ``report`` reads the counters of its capture."""
        with self._lock:
            self._feeds = {**self._feeds, feed: _CaptureCounters(report)}

    def detach(self, feed: Feed) -> None:
        """Ask a sink no more; what it has is kept for the readers."""
        with self._lock:
            counters = self._feeds.get(feed)
            if counters is not None:
                self._left += feed()
                self._ended = _sum([self._ended, counters.read()])
                self._feeds = {each: its for each, its in self._feeds.items() if each != feed}

    def after_fork_in_child(self) -> None:
        """Forget in a child what the parent counted and has not handed on."""
        self._left = []
        self._ended = _sum([self._ended, *[counters.last for counters in self._feeds.values()]])
        self._feeds = {}

    def _observe(self, instrument: Counter, _options: CallbackOptions) -> Iterable[Observation]:
        with at_work_unless_forking() as working:
            if not working:
                return []
            if instrument is COUNTERS[0]:
                self._add_all_to_streams()
            feeds = list(self._feeds.values())
            if instrument is QUEUE:
                values = _sum([_values(counters.report(), QUEUE) for counters in feeds])
            else:
                values = _sum([self._ended, *[counters.read() for counters in feeds]])
        own = {value: count for (name, value), count in values.items() if name == instrument.name}
        return [Observation(count, {instrument.attribute: value}) for value, count in own.items()]

    def _add_all_to_streams(self) -> None:
        """Hand everything that was summed up to the readers."""
        with self._lock:
            for feed in self._feeds:
                self._left += feed()
            while self._left:
                self._add_to_streams(self._left.pop(0))

    def _add_to_streams(self, taken: CollectedSums) -> None:
        try:
            taken.streams.add(
                taken.sums,
                {
                    number: _attributes(taken.series[number])
                    for number in taken.sums.filled_series()
                },
            )
        except MemoryError:
            _log.warning(
                "otel-recfn: there was no memory to hand on durations; the histogram %s lacks some",
                DURATION,
            )
        except BaseException as error:  # it failed in the middle: which sums arrived can't be known
            if raised_by_signal_handler(error):
                raise
            self._log_change(error)

    def _log_change(self, error: BaseException) -> None:
        self._streams = None
        if not self._changed:
            self._changed = True
            _log.warning(
                "otel-recfn: the histogram %s is not one of the opentelemetry-sdk that we know"
                " (%s); it misses durations",
                *(DURATION, error),
                exc_info=not isinstance(error, ChangedSdkError),
            )


def _attributes(series: Series | None) -> Attributes:
    if series is None:
        return OVERFLOW_ATTRIBUTES
    return {"recfn.scope": RecordScope(series.scope).name, "recfn.name": series.name}


def _sum(all_values: Iterable[Values]) -> Values:
    summed: Values = {}
    for values in all_values:
        for key, value in values.items():
            summed[key] = summed.get(key, 0) + value
    return summed


_lock = ForkSafeLock()
_known: WeakIdentityMap[weakref.ref[Instruments]] = WeakIdentityMap()
"""The instruments of each provider, which holds them by their callbacks."""


def get_instruments(provider: metrics.MeterProvider) -> Instruments | None:
    """The instruments on a meter of the provider's; None if it gives none: it isn't set yet, is
    disabled or raises.
    """
    if isinstance(provider, (_PROXY, NoOpMeterProvider)):
        return None
    try:
        with _lock:
            known = _known.get(provider)
            return (known() if known is not None else None) or _make(provider)
    except BaseException as error:
        if raised_by_signal_handler(error):
            raise
        _log.exception("otel-recfn: the meter provider raised; there are no metrics of operators")
        return None


def _make(provider: metrics.MeterProvider) -> Instruments | None:
    meter = provider.get_meter(SCOPE_NAME, __version__, schema_url=SCHEMA_URL)
    if isinstance(meter, NoOpMeter):
        return None
    instruments = Instruments(meter)
    with suppress(TypeError):  # another library's provider may allow no weak references
        _known.set(provider, weakref.ref(instruments))
    return instruments
