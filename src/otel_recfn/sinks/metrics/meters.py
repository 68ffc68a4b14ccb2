"""The instruments of a meter provider."""

from __future__ import annotations

import logging
import weakref
from contextlib import suppress
from typing import Any

from opentelemetry import metrics
from opentelemetry.metrics import NoOpMeter, NoOpMeterProvider

from otel_recfn.sinks.metrics.instruments import Instruments
from otel_recfn.sinks.spans.provider import SCHEMA_URL, SCOPE_NAME
from otel_recfn.support.fork_safe_lock import ForkSafeLock
from otel_recfn.support.weak_identity import WeakIdentityMap
from otel_recfn.version import __version__

_PROXY: Any = getattr(getattr(metrics, "_internal", None), "_ProxyMeterProvider", NoOpMeterProvider)
"""What stands for the global provider until it is set. Where its name is another one, its instruments become real ones later,
with counters in place of the histogram, which ``sdk_streams.py`` doesn't know."""

_log = logging.getLogger(__name__)
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
