"""The instruments on one meter, for as long as the meter lives: the SDK forgets no instrument, and takes no second callback.

    a reader collects ──► callback ──► sums of durations to every reader's histogram (SdkStreams)
                                   └─► counters as they are

Sinks come and go (``attach``, ``detach``). What a sink leaves behind goes to the readers when one of them collects next, and
its counters are kept, because those of a metric never go back.

A callback runs in a thread of the SDK's, which holds locks of the SDK's meanwhile. So it waits for no fork, a fork waits for
it, and while somebody forks it tells nothing.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, NoOpMeter, NoOpMeterProvider, Observation

from otel_recfn.model.events import RecordScope
from otel_recfn.sinks.metrics.durations import Taken
from otel_recfn.sinks.metrics.pipeline import COUNTERS, QUEUES, Counter, Report, Told, Values
from otel_recfn.sinks.metrics.sdk_streams import (
    OVERFLOW_ATTRIBUTES,
    Attributes,
    ChangedSdkError,
    Exemplar,
    SdkStreams,
    SeriesSums,
)
from otel_recfn.sinks.metrics.series import Series
from otel_recfn.sinks.spans.provider import SCHEMA_URL, SCOPE_NAME
from otel_recfn.support.forks import ForkSafeLock, Order, around_forks
from otel_recfn.support.own_thread import at_work_unless_forking
from otel_recfn.support.weak_identity import WeakIdentityMap
from otel_recfn.version import __version__

DURATION = "recfn.operation.duration"
BOUNDS = (1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 10.0)
"""In seconds, where no view says otherwise."""

_PROXY: Any = getattr(getattr(metrics, "_internal", None), "_ProxyMeterProvider", NoOpMeterProvider)
"""What stands for the global provider until it is set."""
_log = logging.getLogger(__name__)


Feed: TypeAlias = "Callable[[], tuple[list[Taken], dict[Series, Exemplar]]]"
"""Where metrics come from, a sink's ``take``: sums of durations since the last time, and spans that were sent since then."""


class Instruments:
    """Made by ``instruments_of``, once for each meter.

    Args:
        meter: of the SDK, or another one.
    """

    def __init__(self, meter: Meter) -> None:
        self._lock = ForkSafeLock()
        self._feeds: dict[Feed, Told] = {}
        self._left: list[Taken] = []
        self._ended: Values = {}
        self._streams: SdkStreams | None = None
        self._told_of_change = False
        self._histogram = _histogram(meter)
        for each in COUNTERS:
            meter.create_observable_counter(each.name, [partial(self._observe, each)], each.unit, each.description)
        for each in QUEUES:
            meter.create_observable_up_down_counter(each.name, [partial(self._observe, each)], each.unit, each.description)
        around_forks(Order.RECORDER, in_child=self.after_fork_in_child)

    def streams(self) -> SdkStreams | None:
        """Where durations go now; None where nobody takes them. Not to be called from a callback."""
        try:
            if self._streams is None or not self._streams.are_current:
                self._streams = SdkStreams(self._histogram)
        except ChangedSdkError as error:
            self._streams = None
            self._tell_of_change(error)
        return self._streams if self._streams is not None and self._streams.asked else None

    def attach(self, feed: Feed, report: Callable[[], Report], *, from_zero: bool) -> None:
        """Ask a sink from now on.

        Args:
            feed: of the sink.
            report: reads the counters of its capture.
            from_zero: they began with it, as in a forked child.
        """
        told = Told(report, from_zero=from_zero)
        with self._lock:
            self._feeds = {**self._feeds, feed: told}

    def detach(self, feed: Feed) -> None:
        """Ask it no more; what it has is kept for the readers."""
        with self._lock:
            told = self._feeds.get(feed)
            if told is not None:
                self._left += feed()[0]
                self._end(told)
                self._feeds = {each: its for each, its in self._feeds.items() if each != feed}

    def after_fork_in_child(self) -> None:
        """In a child: what the parent counted, and has not handed on yet, is the parent's."""
        self._left = []
        for told in self._feeds.values():
            told.end()
            self._end(told)
        self._feeds = {}

    def _end(self, told: Told) -> None:
        self._ended = _sum([self._ended, told.values()])
        told.end()

    def _observe(self, instrument: Counter, _options: CallbackOptions) -> Iterable[Observation]:
        with at_work_unless_forking() as working:
            if not working:
                return []
            if instrument is COUNTERS[0]:
                self._hand_on()
            all_told = list(self._feeds.values())
            if instrument in QUEUES:
                values = _sum([told.waiting(instrument) for told in all_told])
            else:
                values = _sum([self._ended, *[told.values() for told in all_told]])
        return [
            Observation(count, {instrument.attribute: value})
            for (name, value), count in values.items()
            if name == instrument.name
        ]

    def _hand_on(self) -> None:
        """Everything that was summed up goes to the readers."""
        exemplars: dict[Series, Exemplar] = {}
        with self._lock:
            for feed in self._feeds:
                taken, sent = feed()
                self._left += taken
                exemplars.update(sent)
            while self._left:
                self._hand(self._left.pop(0), exemplars)

    def _hand(self, taken: Taken, exemplars: dict[Series, Exemplar]) -> None:
        try:
            filled = taken.sums.filled()
            taken.streams.add(taken.sums, [_of_series(taken.series[number], number, exemplars) for number in filled])
        except MemoryError:
            _log.warning("otel-recfn: there was no memory to hand on durations; the histogram %s lacks some", DURATION)
        except Exception as error:  # in the middle of what the SDK has: what it got can't be told from what it didn't
            self._tell_of_change(error)

    def _tell_of_change(self, error: Exception) -> None:
        if not self._told_of_change:
            self._told_of_change = True
            _log.warning(
                "otel-recfn: the histogram %s is not one of the opentelemetry-sdk that we know (%s); it misses durations",
                *(DURATION, error),
                exc_info=not isinstance(error, ChangedSdkError),
            )


def _histogram(meter: Meter) -> Any:
    description = "How long operators and ranges took."
    try:
        return meter.create_histogram(DURATION, "s", description, explicit_bucket_boundaries_advisory=BOUNDS)
    except TypeError:  # before version 1.31 of the SDK
        return meter.create_histogram(DURATION, "s", description)


def _of_series(series: Series | None, number: int, exemplars: dict[Series, Exemplar]) -> SeriesSums:
    return SeriesSums(number, _attributes(series), None if series is None else exemplars.get(series))


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


def instruments_of(provider: metrics.MeterProvider) -> Instruments | None:
    """Those on a meter of the provider's; None where it gives none, as it isn't set yet, is disabled or raises."""
    if isinstance(provider, (_PROXY, NoOpMeterProvider)):
        return None
    try:
        return _known_or_made(provider)
    except Exception:
        _log.exception("otel-recfn: the meter provider raised; there are no metrics of operators")
        return None


def _known_or_made(provider: metrics.MeterProvider) -> Instruments | None:
    with _lock:
        known = _known.get(provider)
        return (known() if known is not None else None) or _make(provider)


def _make(provider: metrics.MeterProvider) -> Instruments | None:
    meter = provider.get_meter(SCOPE_NAME, __version__, schema_url=SCHEMA_URL)
    if isinstance(meter, NoOpMeter):
        return None
    instruments = Instruments(meter)
    with suppress(TypeError):  # a provider of others that can't be referred to weakly
        _known.set(provider, weakref.ref(instruments))
    return instruments
