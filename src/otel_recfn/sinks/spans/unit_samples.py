"""What a unit ran in Python while its threads recorded nothing, by function.

    samples ──► below which span? ──► UnitSamples ──► FunctionTime ─┬► attributes of the unit
                                                                    └► SampledSpan

A sample belongs to the unit below the span that was current, as far as the thread's ranges have
told, or to the trace of ours that the thread's last range is in. What runs after that span has
ended, and after the last range of a trace of ours, is of no unit. But what runs after a training
step that nothing marks is that step's, until the next trace begins in the thread: such a step ends
with its optimizer, and a program may save its model then.

A function that took a tenth of the unit has a span where its samples found it for longest without a
break: no range of the thread begins or ends there, so that the span crosses none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from opentelemetry.trace import SpanContext

from otel_recfn.batches.sampled_functions import SampledRun, SampledRuns, sum_of
from otel_recfn.model.batch import Sample

MIN_SHARE = 0.1
"""The minimum share of a unit that a function took, if it has a span."""
MAX_SPANS = 3
"""The maximum number of functions of a unit that have spans."""


@dataclass(slots=True)
class FunctionTime:
    """The samples of a unit that found one function."""

    count: int = 0
    duration_ns: int = 0
    longest: SampledRun | None = None
    """The longest run of them; None if there are none."""

    def add(self, run: SampledRun) -> None:
        """Add a run of that function."""
        self.count += run.samples
        self.duration_ns += run.duration_ns
        if self.longest is None or run.length_ns > self.longest.length_ns:
            self.longest = run


FunctionTimes = Mapping[str, FunctionTime]
"""The samples of a unit outside of operators by function, the one with the most time first."""


class SampledTime(NamedTuple):
    """What samples found in a unit."""

    functions: FunctionTimes
    waits_ns: Mapping[str, int]
    """The time for which threads waited, by what they waited for."""


class SampledSpan(NamedTuple):
    """A span for a function of a unit."""

    function: str
    time: FunctionTime
    run: SampledRun
    """Its longest run, which the span shows."""
    unit_parent: SpanContext
    """The span above the unit."""
    parent_id: int
    """The id of its parent span, in the same trace."""


def spans_in(
    functions: FunctionTimes, start_ns: int, end_ns: int, *, may_end_later: bool = False
) -> list[tuple[str, SampledRun]]:
    """The functions that get a span in a unit of these times, each with its longest run, as far as
    that lies in the unit.

    ``may_end_later``: the unit has what runs after its end, too.
    """
    longest = [
        (name, time.longest, time.duration_ns)
        for name, time in list(functions.items())[:MAX_SPANS]
        if time.longest is not None
    ]
    last_ns = max([end_ns, *[run.end_ns for _, run, _ in longest]])
    min_ns = MIN_SHARE * (last_ns - start_ns)
    found = []
    for name, run, duration_ns in longest:
        # A span that ends after its parent gets a warning in Jaeger.
        inside = run.within(start_ns, last_ns if may_end_later else end_ns)
        if duration_ns >= min_ns and inside.end_ns > inside.start_ns:
            found.append((name, inside))
    return found


class UnitSamples:
    """The samples of an open unit, since its last part."""

    def __init__(self) -> None:
        self._runs = SampledRuns()
        self._functions: dict[str, FunctionTime] = {}
        self._waits_ns: Mapping[str, int] = {}

    def add(self, sample: Sample) -> None:
        """Add a sample, after the earlier ones of its thread."""
        for run in self._runs.add([sample]):
            self._add_run(run)

    def take_part(self) -> SampledTime:
        """Remove and return all but the runs that may still go on."""
        found, self._functions = self._functions, {}
        waits_ns, self._waits_ns = self._waits_ns, {}
        longest_first = sorted(found.items(), key=lambda item: -item[1].duration_ns)
        return SampledTime(dict(longest_first), waits_ns)

    def take_all(self, end_ns: int | None) -> SampledTime:
        """Remove and return all, but for what ran after the last range of a unit that ended then;
        None: also that.
        """
        for run in self._runs.waiting():
            if end_ns is None or run.since_ns < end_ns:
                self._add_run(run)
        self._runs = SampledRuns()
        return self.take_part()

    def _add_run(self, run: SampledRun) -> None:
        self._waits_ns = sum_of(self._waits_ns, run.waits_ns)
        if not run.is_in_operator:
            self._functions.setdefault(run.name, FunctionTime()).add(run)
