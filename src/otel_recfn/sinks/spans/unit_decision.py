"""The decision of units: what the sender gets of units that end, or of parts of them.

    UnitSummary, UnitObjects, Grant ──► UnitPart, which takes the unit's samples
    UnitParts ──► Stage.decide ──► Decided: ranges that get spans, and sums of the others
        ├► attributes of whole units: on the root of a trace of ours, otherwise on a span in it
        ├► sums of what was folded directly into a root of ours: on that
        ├► sums of units below batches of requests: UnitSums
        └► functions that samples found: SampledSpan
    all of it ──► DecidedUnits

A unit that stays open is decided in parts, each of which is sent like a unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from otel_recfn.batches.sampled_functions import SampledRun
from otel_recfn.batches.stage import Decided, Stage
from otel_recfn.model.events import MIN_WAIT_NS, WAIT_TIME, wait_time_ns
from otel_recfn.sinks.spans.budgets import Grant
from otel_recfn.sinks.spans.open_units import UnitObjects
from otel_recfn.sinks.spans.program_spans import ProgramSpans
from otel_recfn.sinks.spans.range_attributes import Attributes
from otel_recfn.sinks.spans.request_batches import RequestBatches
from otel_recfn.sinks.spans.sender import ROOT_BYTES, DecidedUnits
from otel_recfn.sinks.spans.span_hook import FAILED_COUNT
from otel_recfn.sinks.spans.sum_attributes import (
    outside_attributes,
    sum_attributes,
    wait_attributes,
)
from otel_recfn.sinks.spans.unit_attributes import add_to_unit
from otel_recfn.sinks.spans.unit_samples import (
    FunctionTimes,
    SampledSpan,
    SampledTime,
    spans_in,
)
from otel_recfn.support.span_log import is_ours

if TYPE_CHECKING:
    from otel_recfn._native import UnitSummary


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class UnitPart:
    """A unit that is decided, or a part of it."""

    summary: UnitSummary
    objects: UnitObjects
    max_spans: int
    """The maximum number of spans for its ranges."""
    functions: FunctionTimes
    """The samples in it."""
    waits_ns: Mapping[str, int]
    """The time for which its threads waited, by what they waited for, if it waited for most of its
    time.
    """
    sampled_runs: Sequence[tuple[str, SampledRun]]
    """The functions that get a span, each with the run of samples that this shows."""

    @property
    def unit(self) -> int:
        """The unit's number."""
        return self.summary.unit

    @property
    def has_attributes(self) -> bool:
        """Whether a span may have attributes of the whole unit that aren't sums of ranges."""
        has_waited = self.summary.top_ns >= MIN_WAIT_NS
        is_sampled = bool(self.functions or self.waits_ns)
        has_generation = self.objects.generation is not None
        return has_waited or self.summary.failed_rows > 0 or is_sampled or has_generation


def take_part(
    summary: UnitSummary, objects: UnitObjects, grant: Grant, *, is_partial: bool
) -> UnitPart:
    """What is decided of a unit now, with its samples, which it loses.

    Spans for functions are taken from the unit's grant, but for one, which is a range's.
    """
    trace = objects.trace if not is_partial else None
    end_ns = trace.end_ns if trace is not None else summary.end_ns
    found = _take_samples(objects, end_ns, is_partial)
    has_waited = 2 * sum(found.waits_ns.values()) > end_ns - summary.start_ns
    runs = spans_in(found.functions, summary.start_ns, end_ns, may_end_later=objects.is_training)
    runs = runs[: max(0, grant.spans - 1)]
    return UnitPart(
        summary=summary,
        objects=objects,
        max_spans=grant.spans - len(runs),
        functions=found.functions,
        waits_ns=found.waits_ns if has_waited else {},
        sampled_runs=runs,
    )


def _take_samples(objects: UnitObjects, end_ns: int, is_partial: bool) -> SampledTime:
    """Remove the samples of what is decided, and return them."""
    if objects.samples is None:
        return SampledTime({}, {})
    if is_partial:
        return objects.samples.take_part()
    # A training step has what its thread runs after it, too.
    return objects.samples.take_all(None if objects.is_training else end_ns)


def decide_units(
    stage: Stage,
    parts: Sequence[UnitPart],
    spans: ProgramSpans,
    batches: RequestBatches,
    *,
    is_partial: bool,
    is_ordinary: bool,
) -> DecidedUnits:
    """Decide units, or parts of them, that are all ordinary or all not."""
    decided = _decide_ranges(stage, parts, batches, is_partial, is_ordinary)
    for index, part in enumerate(parts):
        if part.has_attributes:
            in_step = is_ours(spans.find(*part.objects.key))
            _add_attributes(decided, index, part, in_step=in_step)
    _add_root_sums(decided, parts)
    roots = [part.objects.trace for part in parts if part.objects.trace is not None]
    sampled = [span for part in parts for span in _sampled_spans(decided, part)]
    return DecidedUnits(
        plan=decided.plan,
        decided=decided,
        roots=roots,
        ranges=sum(part.summary.rows for part in parts),
        is_ordinary=is_ordinary,
        nbytes=_table_bytes(decided) + (len(roots) + len(sampled)) * ROOT_BYTES,
        sampled=sampled,
    )


def _decide_ranges(
    stage: Stage,
    parts: Sequence[UnitPart],
    batches: RequestBatches,
    is_partial: bool,
    is_ordinary: bool,
) -> Decided:
    """Decide which ranges get spans; a unit below a batch of requests also adds to its sums."""
    batch_sums = {
        index: sums
        for index, part in enumerate(parts)
        if (sums := batches.sums_of(part.objects.key)) is not None
    }
    decided = stage.decide(
        [(part.unit, part.max_spans) for part in parts],
        [part.objects.parent_span for part in parts],
        is_partial=is_partial,
        named=[parts[index].unit for index in batch_sums],
        sampled=[(part.unit, run) for part in parts for _, run in part.sampled_runs],
    )
    for index, sums in batch_sums.items():
        sums.add(decided, index, parts[index].summary, parts[index].functions)
        sums.is_ordinary &= is_ordinary
    return decided


def _add_attributes(decided: Decided, index: int, part: UnitPart, *, in_step: bool) -> None:
    """Add the attributes of the whole unit to the root of a trace of ours, or else to a span.

    Args:
        decided: the units that were decided together.
        index: the index of this one among them.
        part: what is decided of it.
        in_step: its parent span is a step's, which has the attributes of generations itself.
    """
    attributes = _whole_attributes(part)
    objects = part.objects
    generated: Mapping[str, Any] = {}
    prefill_ids: Sequence[int] = ()
    if objects.generation is not None:
        prefill_ids = objects.generation.prefill_ids
        if not in_step:
            generated = objects.generation.attributes(part.summary.start_ns)
        objects.generation = objects.generation.following_part()
    if objects.trace is not None:
        objects.trace.extra_attributes = {**attributes, **generated}
        attributes = {}
        generated = {}
    add_to_unit(decided, index, attributes, generated, prefill_ids)


def _whole_attributes(part: UnitPart) -> Attributes:
    """The attributes of a whole unit, without those of its generations."""
    waited_ns = wait_time_ns(part.summary.top_ns, part.summary.top_cpu_ns)
    attributes: Attributes = {WAIT_TIME: waited_ns} if waited_ns else {}
    if part.summary.failed_rows:
        attributes[FAILED_COUNT] = part.summary.failed_rows
    return attributes | outside_attributes(part.functions) | wait_attributes(part.waits_ns)


def _add_root_sums(decided: Decided, parts: Sequence[UnitPart]) -> None:
    """Add the sums of what was folded directly into roots of ours to their traces."""
    sums = decided.sums
    for row in np.flatnonzero((sums["span"] < 0) & (sums["ranges"] > 0)):
        trace = parts[sums["unit"][row]].objects.trace
        assert trace is not None  # only Stage.finish(takes_sums=True) makes such sums
        [attributes] = sum_attributes(decided, np.array([row]))
        trace.extra_attributes = {**trace.extra_attributes, **attributes}
        if sums["is_whole_unit"][row]:
            trace.folded += int(sums["ranges"][row])


def _sampled_spans(decided: Decided, part: UnitPart) -> Iterator[SampledSpan]:
    """The spans for functions of a unit: below the range around each, or directly in the unit.

    One in a range that has no span of its own gets none.
    """
    unit_parent = part.objects.parent_span
    for name, run in part.sampled_runs:
        parent_id = unit_parent.span_id
        if run.enclosing:
            rows = np.flatnonzero(decided.plan.batch.event_id == run.enclosing)
            if not len(rows):
                continue
            parent_id = int(decided.plan.part(rows).span_id[0])
        yield SampledSpan(
            function=name,
            time=part.functions[name],
            run=run,
            unit_parent=unit_parent,
            parent_id=parent_id,
        )


def _table_bytes(decided: Decided) -> int:
    """The approximate bytes of the plan and the tables."""
    tables = (decided.sums, decided.top, decided.summaries, decided.callers)
    texts = [*decided.plan.batch.names, *decided.names.values()]
    return decided.plan.nbytes(texts, [table for table in tables if len(table)])
