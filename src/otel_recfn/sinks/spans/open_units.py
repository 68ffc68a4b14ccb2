"""The open units of a sink, with the Python objects that belong to them.

    ranges       ──► the native stage: units by number, and everything that is of ranges alone
    new units ───────┐
    generations ─────┤
    samples ─────────┼─► UnitObjects, by the number of the unit
    ended spans ─────┤       └► the stage: Stage.end_span, Stage.finish
    complete traces ─┘

A sample belongs to the unit below the span that was current, or to the trace of ours that the last
range of its thread is in. Such a trace may have samples before any of its ranges has ended, so
before it has a unit: these wait in ``_early_samples``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opentelemetry.trace import SpanContext

from otel_recfn.batches.outcomes import Outcome, outcome_of
from otel_recfn.batches.sampled_functions import has_no_work
from otel_recfn.batches.stage import OwnRoot, Stage, find_root
from otel_recfn.model.batch import Batch, Sample
from otel_recfn.model.generation import Generation
from otel_recfn.sinks.spans.program_spans import ProgramSpans
from otel_recfn.sinks.spans.step_trace import TRAINING, StepTrace
from otel_recfn.sinks.spans.step_traces import StepTraces
from otel_recfn.sinks.spans.unit_attributes import decoding_in
from otel_recfn.sinks.spans.unit_samples import UnitSamples


@dataclass(eq=False, slots=True)
class UnitObjects:
    """The Python objects of an open unit, of which the stage has everything else."""

    parent_span: SpanContext
    """The span of the program's that its ranges are below, or the root of a trace of ours."""
    name: str = ""
    """The name of the program's span, once that has ended."""
    trace: StepTrace | None = None
    """The complete trace, if it is one of ours."""
    generation: Generation | None = None
    samples: UnitSamples | None = None
    """The samples of what it ran in Python; None if there are none."""

    @property
    def key(self) -> tuple[int, int]:
        """The trace id and span id of the parent span."""
        return self.parent_span.trace_id, self.parent_span.span_id

    @property
    def is_training(self) -> bool:
        """Whether it is a training step that nothing marks."""
        return self.trace is not None and self.trace.name == TRAINING


class OpenUnits:
    """The objects of the stage's open units.

    Args:
        stage: the stage that has the units.
        spans: the program's spans.
        traces: the traces that we start.
    """

    def __init__(self, stage: Stage, spans: ProgramSpans, traces: StepTraces) -> None:
        self._stage = stage
        self._spans = spans
        self._traces = traces
        self._objects: dict[int, UnitObjects] = {}
        self._early_samples: dict[int, UnitSamples] = {}
        """The samples of traces of ours without a unit, by the span ids of their roots."""

    def __getitem__(self, unit: int) -> UnitObjects:
        """The objects of the unit with this number."""
        return self._objects[unit]

    def add(
        self, new_units: Mapping[int, SpanContext], batch: Batch, roots: Sequence[OwnRoot]
    ) -> None:
        """Add the units that begin in a batch, and the batch's generations and samples.

        The arguments are those of ``Stage.add``, and its result.
        """
        for unit, parent_span in new_units.items():
            samples = self._early_samples.pop(parent_span.span_id, None)
            self._objects[unit] = UnitObjects(parent_span, samples=samples)
        if (batch.step_number >= 0).any():
            self._add_generations(batch, roots)
        for sample in batch.samples:
            self._add_sample(sample, roots)

    def finish(self, trace: StepTrace) -> bool:
        """Note that a trace of ours is complete, and so its unit; False if it has none."""
        unit = self._stage.find(trace.context)
        if unit is None:
            self._early_samples.pop(trace.context.span_id, None)
            return False
        self._objects[unit].trace = trace
        self._stage.finish(unit, takes_sums=True)
        return True

    def report_ended_spans(self) -> list[int]:
        """Report to the stage which parent spans have ended.

        Returns the quiet units below spans that are not known to be open here, as their ends can't
        be seen.
        """
        unseen = []
        for unit in self._stage.unended():
            objects = self._objects[unit.unit]
            end = self._spans.span_end(*objects.key)
            if end is not None:
                now_ns = time.time_ns()
                self._stage.end_span(
                    unit.unit,
                    ended_by_ns=now_ns if end.end_ns is None else min(now_ns, end.end_ns),
                    start_ns=end.start_ns,
                    end_ns=end.end_ns,
                    failed=end.failed,
                )
                objects.name = end.name
            elif unit.is_quiet and not self._is_parent_open(objects):
                unseen.append(unit.unit)
        return unseen

    def forget(self, unit: int) -> None:
        """Forget a unit that is decided as a whole."""
        self._spans.forget(*self._objects.pop(unit).key)

    def _is_parent_open(self, unit: UnitObjects) -> bool:
        """Whether the parent span is an open one of the program's, or the root of an open trace of
        ours.
        """
        return self._spans.find(*unit.key) is not None or self._traces.has_open(unit.parent_span)

    def _add_generations(self, batch: Batch, roots: Sequence[OwnRoot]) -> None:
        for parent_span, number, end_ns, start in decoding_in(batch, roots):
            unit = self._stage.find(parent_span)
            if unit is not None:
                objects = self._objects[unit]
                objects.generation = objects.generation or Generation()
                objects.generation.add(number, end_ns, start)

    def _add_sample(self, sample: Sample, roots: Sequence[OwnRoot]) -> None:
        if has_no_work(sample.name):
            return
        samples = self._samples_with(sample, roots)
        if samples is not None:
            samples.add(sample)

    def _samples_with(self, sample: Sample, roots: Sequence[OwnRoot]) -> UnitSamples | None:
        """The samples of the unit to which one belongs; None if it is in no unit."""
        outcome = outcome_of(sample.context)
        root = find_root(roots, sample.last_begun) if outcome == Outcome.ROOTLESS else None
        if root is None and outcome != Outcome.IN_SPAN:
            return None
        unit = self._stage.find(root.context if root is not None else sample.context)
        if unit is not None:
            return self._open_samples(self._objects[unit], sample.time_ns)
        if root is None or not self._traces.has_open(root.context):
            return None
        return self._early_samples.setdefault(root.context.span_id, UnitSamples())

    def _open_samples(self, unit: UnitObjects, time_ns: int) -> UnitSamples | None:
        """The samples of a unit; None if its parent span had ended by then."""
        end = self._spans.span_end(*unit.key)
        if end is not None and end.end_ns is not None and end.end_ns < time_ns:
            return None
        unit.samples = unit.samples or UnitSamples()
        return unit.samples
