"""The attributes of spans that we add, which are of no single range: sums of call paths, functions
that samples found, and the requests of a batch.

A sum has those of the span pruning processor of OpenTelemetry Collectors, which trace viewers know.
"""

from __future__ import annotations

from typing import Any

from otel_recfn.batches.span_names import PREFIX
from otel_recfn.batches.stage import Decided
from otel_recfn.model.batch import Track
from otel_recfn.model.events import CPU_TIME, RecordScope
from otel_recfn.sinks.spans.range_attributes import Attributes, track_attributes
from otel_recfn.sinks.spans.unit_samples import SampledSpan
from otel_recfn.support.request_batch import BATCH, Request
from otel_recfn.support.texts import utf8_text

_SCOPES = range(len(RecordScope))


def summary_attributes(decided: Decided, row: Any) -> Attributes:
    """The attributes of a summary of a call path."""
    names = decided.names
    worked: Attributes = {CPU_TIME: row.cpu_time_ns} if row.cpu_time_ns >= 0 else {}
    return {
        **_call_attributes(row.scope, decided.threads.get(row.thread)),
        **_module_attributes(names[row.name], names[row.module] if row.module else ""),
        "aggregation.is_summary": True,
        "aggregation.span_count": row.count,
        "aggregation.duration_min_ns": row.shortest_ns,
        "aggregation.duration_max_ns": row.longest_ns,
        "aggregation.duration_avg_ns": row.total_ns // row.count,
        "aggregation.duration_total_ns": row.total_ns,
        **worked,
    }


def sampled_attributes(sampled: SampledSpan) -> Attributes:
    """The attributes of a span for a function that samples found."""
    return {
        "recfn.sampled": True,
        "recfn.sample_count": sampled.time.count,
        "recfn.sampled_time_ns": sampled.time.duration_ns,
        "recfn.sampled_function": utf8_text(sampled.function),
        **track_attributes(sampled.run.thread),
    }


def request_attributes(request: Request, start_ns: int) -> Attributes:
    """The attributes of a request of a batch that began then."""
    found: Attributes = {BATCH + "position": request.position}
    if request.start_ns is not None and 0 <= request.start_ns <= start_ns:
        found[BATCH + "waited_ns"] = start_ns - request.start_ns
    return found


def _call_attributes(scope: int, thread: Track | None) -> Attributes:
    """The attributes that all calls of a summary have.

    A scope that isn't one is that of several.
    """
    found: Attributes = {"recfn.scope": RecordScope(scope).name} if scope in _SCOPES else {}
    return found | track_attributes(thread) if thread is not None else found


def _module_attributes(name: str, path: str) -> Attributes:
    """The attributes of a summary of ranges of that name.

    Of module calls, ``path`` is what their paths share, if anything.
    """
    if not name.startswith(PREFIX):
        return {}
    module_attributes: Attributes = {"recfn.module": utf8_text(path)} if path else {}
    return {**module_attributes, "recfn.module.class": utf8_text(name.removeprefix(PREFIX))}
