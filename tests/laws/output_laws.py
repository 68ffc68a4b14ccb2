"""All outputs tell the same: each event has the same facts wherever it is shown, and all sums are
equal.

What the documentation promises, as equalities:

    event id    stands for one range: in the sink, ``profile()``, both Chrome traces, and the span
                of a single range, as ``recfn.event_id``
    begin, end  to the nanosecond the same in all of them, and in the legacy profiler
    parent      the same in sink and ``profile()``; of slices that nest, the one they lie in by time
    self time   a range's length less that of the ranges directly in it that nest on its thread
    tables      by name: tree = report of the profile = report of its Chrome trace
                = sums of the events; averages = these without ranges alone in one of their name
    reports     of a Chrome trace = of the profile: rows, counts, times, shares, the wall time, and
                steps: ranges of ``step`` and of a profiler's schedule, and training steps that
                nothing marks
    metric      by name: its counts and sums = those of the sink's events
    counts      ranges in the Chrome trace
                = spans of single ranges + sum of ``recfn.unit.folded.count`` + ``unsampled``
    counters    recorded = ranges in the Chrome trace
                recorded + added = exported + folded + unsampled + waiting + failed + dropped
    spans       the nearest span above that isn't ``(folded)`` = the span of the innermost range
                around in the same span that has one, else the span that was current, else a root
                of ours
    links       lead to spans that were sent, and none to the own parent
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from output_values import NODE, Range, Span
from outputs import EACH_WAY, Outputs
from outputs_programs import PROGRAMS

Run = Callable[..., Outputs]
"""Runs a program in a way, once for all tests."""
TOLERANCE_NS = 100_000
"""By how much a slice of a span may differ from the span."""
TOP = re.compile(r"(.+): (\d+) x, ([\d.]+) ms(?:, waited ([\d.]+) ms)?")
"""A name in ``recfn.unit.top``, with its count and the times that it worked and waited."""


def everywhere(*, without: Iterable[str] = ()) -> pytest.MarkDecorator:
    """Parametrizes with each program in each way, but for programs that a law isn't meant for."""
    parameters = [
        pytest.param(program, way, id=f"{name}-{way}")
        for name, program in PROGRAMS.items()
        if name not in without
        for way in EACH_WAY
    ]
    return pytest.mark.parametrize(("program", "way"), parameters)


# --- helpers


def times(each: Any) -> tuple[int, int]:
    return each.start_ns, each.end_ns


def differences(
    one: Mapping[int, Range], other: Mapping[int, Range], facts: Iterable[str]
) -> list[str]:
    """The facts in which ranges differ, where both say something."""
    found = []
    for event_id, said in one.items():
        for fact in facts:
            values = getattr(said, fact), getattr(other[event_id], fact)
            if None not in values and values[0] != values[1]:
                found.append(f"{other[event_id].name}: {fact} is {values[0]!r}, not {values[1]!r}")
    return found


def own_spans(found: Outputs) -> list[Span]:
    """Those of the program's process."""
    in_child = {span.span_id for span in found.child_spans()}
    return [span for span in found.spans if span.span_id not in in_child]


def shares_span(found: Outputs, event_id: int) -> bool:
    """Whether the span of the range around a backward node is also the node's, as it says."""
    is_around = bool(found.events[event_id].name.startswith(NODE))
    return is_around and found.single[event_id].attributes["recfn.scope"] == "BACKWARD_FUNCTION"


def nodes_in_shared_spans(found: Outputs) -> set[int]:
    """The backward nodes whose span is that of the range around them."""
    return {
        event.event_id
        for event in found.events.values()
        if event.scope.name == "BACKWARD_FUNCTION"
        and event.parent in found.single
        and shares_span(found, event.parent)
    }
