"""The attributes that say by sums what was folded: how many ranges, how long, which names took most
of it; and what ran in Python meanwhile.

They are made for many at once, of columns: taking numbers out of columns one by one takes longer
than all the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from otel_recfn.batches.number_sets import Indices, begin_offsets, indices_in
from otel_recfn.batches.span_names import display_name
from otel_recfn.batches.stage import Decided, records
from otel_recfn.model.events import WAIT_TIME, wait_time_ns
from otel_recfn.sinks.spans.range_attributes import Attributes
from otel_recfn.sinks.spans.span_hook import (
    FAILED_COUNT,
    FOLDED_COUNT,
    FOLDED_NS,
    UNIT_FOLDED_COUNT,
)
from otel_recfn.sinks.spans.unit_samples import FunctionTime, FunctionTimes
from otel_recfn.support.texts import utf8_text

if TYPE_CHECKING:
    from otel_recfn._native import UnitSummary

CALLERS = "recfn.callers"
_SPAN_KEYS = (FOLDED_COUNT, FOLDED_NS, "recfn.folded.top")
"""The keys of the sums of what was folded into one span: how many, how long, which names."""
_UNIT_KEYS = (UNIT_FOLDED_COUNT, "recfn.unit.folded.duration_ns", "recfn.unit.top")
"""The same of a whole unit."""
_OUTSIDE_KEYS = ("recfn.unit.outside.duration_ns", "recfn.unit.outside.top")
"""The keys of the time that samples found in Python functions: how long, which functions."""
WAITED_FOR = "recfn.unit.waited_for"
TOP_NAMES = 3
"""The number of names that worked most, as ``native/stage/name_times.hpp`` gives them."""


class TopName(NamedTuple):
    """A name that worked for much of the time of some sums, or waited."""

    name: str
    ranges: int
    self_ns: int
    """The time of its ranges without those in them."""
    worked_ns: int
    """The part of it in which they worked, as far as that is known."""

    @property
    def waited_ns(self) -> int:
        """The time that they waited, if that is most of ``self_ns``; 0 otherwise."""
        return wait_time_ns(self.self_ns, self.worked_ns)

    @property
    def text(self) -> str:
        """What an attribute says of it."""
        waited = f", waited {self.waited_ns / 1e6:.3f} ms" if self.waited_ns else ""
        return f"{self.name}: {self.ranges} x, {self.worked_ns / 1e6:.3f} ms{waited}"


def sum_attributes(decided: Decided, indices: Indices) -> list[Attributes]:
    """The attributes for the sums at these places."""
    sums = decided.sums[indices]
    begins = begin_offsets(decided.sums["top_end"], indices)
    lengths = sums["top_end"] - begins
    ends = np.cumsum(lengths)
    top = [each.text for each in _top_names(decided, indices_in(begins, lengths))]
    return [
        _sum_attributes(
            _UNIT_KEYS if row.is_whole_unit else _SPAN_KEYS,
            row.ranges,
            row.duration_ns,
            top[first:last],
        )
        for row, first, last in zip(
            records("sums", sums), (ends - lengths).tolist(), ends.tolist(), strict=True
        )
    ]


class UnitSums:
    """The sums of a unit, over all parts in which it is decided, for spans that aren't its own."""

    def __init__(self) -> None:
        self._ranges = self._duration_ns = self._failed = self._waited_ns = 0
        self._top = dict[str, TopName]()
        """The sums of ranges by name."""
        self._outside = dict[str, FunctionTime]()
        self.is_ordinary = True
        """Whether every part of it is."""

    def add(
        self, decided: Decided, unit: int, summary: UnitSummary, outside: FunctionTimes
    ) -> None:
        """Add a part: the unit of that index among those that were decided together, and its
        samples.
        """
        self._failed += summary.failed_rows
        self._waited_ns += wait_time_ns(summary.top_ns, summary.top_cpu_ns)
        for name, time in outside.items():
            total = self._outside.setdefault(name, FunctionTime())
            total.count += time.count
            total.duration_ns += time.duration_ns
        sums = decided.sums
        [*whole] = np.flatnonzero((sums["unit"] == unit) & (sums["is_whole_unit"] != 0))
        for index in whole:
            self._ranges += int(sums["ranges"][index])
            self._duration_ns += int(sums["duration_ns"][index])
            first = int(sums["top_end"][index - 1]) if index else 0
            for each in _top_names(decided, slice(first, sums["top_end"][index])):
                before = self._top.get(each.name, TopName(each.name, 0, 0, 0))
                self._top[each.name] = TopName(
                    each.name,
                    before.ranges + each.ranges,
                    before.self_ns + each.self_ns,
                    before.worked_ns + each.worked_ns,
                )

    def attributes(self) -> Attributes:
        """The attributes of the whole unit, as its own span has them."""
        names = sorted(self._top.values(), key=lambda one: -one.worked_ns)
        longest = max(names, key=lambda one: one.waited_ns, default=None)
        shown = names[:TOP_NAMES]
        if longest is not None and longest.waited_ns and longest not in shown:
            shown.append(longest)
        top = [each.text for each in shown]
        found: Attributes = {_UNIT_KEYS[2]: top} if top else {}
        if self._ranges:
            found |= {_UNIT_KEYS[0]: self._ranges, _UNIT_KEYS[1]: self._duration_ns}
        if self._failed:
            found[FAILED_COUNT] = self._failed
        if self._waited_ns:
            found[WAIT_TIME] = self._waited_ns
        return found | outside_attributes(self._outside)


def outside_attributes(functions: FunctionTimes) -> Attributes:
    """The attributes of what samples found in a unit."""
    if not functions:
        return {}
    longest = sorted(functions.items(), key=lambda item: -item[1].duration_ns)[:TOP_NAMES]
    top = [_function_text(name, time) for name, time in longest]
    duration_ns = sum(time.duration_ns for time in functions.values())
    return {_OUTSIDE_KEYS[0]: duration_ns, _OUTSIDE_KEYS[1]: top}


def wait_attributes(waits_ns: Mapping[str, int]) -> Attributes:
    """The attribute that says for whom a unit waited, each with its share of the waits."""
    whole_ns = sum(waits_ns.values())
    longest = sorted(waits_ns.items(), key=lambda item: -item[1])[:TOP_NAMES]
    texts = [f"{utf8_text(name)}: {100 * each / whole_ns:.0f} %" for name, each in longest]
    return {WAITED_FOR: texts} if texts else {}


def _function_text(name: str, time: FunctionTime) -> str:
    return f"{utf8_text(name)}: {time.count} x, {time.duration_ns / 1e6:.3f} ms"


def _top_names(decided: Decided, which: slice | Indices) -> list[TopName]:
    rows = decided.top[which].tolist()
    texts = {name: utf8_text(decided_name(decided, name)) for name in {row[-1] for row in rows}}
    return [TopName(texts[name], *numbers) for *numbers, name in rows]


def _sum_attributes(
    names: tuple[str, str, str], ranges: int, duration_ns: int, top: list[str]
) -> Attributes:
    """A sum that took no time, as that of a range which shares another one's span, has no names
    that took most.
    """
    found: Attributes = {names[0]: ranges, names[1]: duration_ns}
    return {**found, names[2]: top} if top else found


def extra_span_attributes(
    decided: Decided, first: int, last: int
) -> tuple[dict[int, Attributes], int]:
    """The attributes of some spans that no column has: for ranges folded into them, for what only
    calls them, for their unit.

    Returns them by the spans' numbers, from ``first`` on, and how many ranges were folded in the
    units that are told so.
    """
    span = decided.sums["span"]
    folded = decided.sums["ranges"]
    indices = np.flatnonzero((span >= first) & (span < last) & (folded > 0))
    extra_attributes = dict[int, Attributes]()
    for number, sum_fields in zip(
        span[indices].tolist(),
        sum_attributes(decided, indices) if len(indices) else (),
        strict=True,
    ):
        extra_attributes.setdefault(number, {}).update(sum_fields)
    callers = decided.callers[(decided.callers["span"] >= first) & (decided.callers["span"] < last)]
    for number, name in callers.tolist():
        attributes = extra_attributes.setdefault(number, {})
        attributes[CALLERS] = [
            *attributes.get(CALLERS, ()),
            utf8_text(decided_name(decided, name)),
        ]  # type: ignore[misc]
    for number in [number for number in decided.extra_attributes if first <= number < last]:
        extra_attributes.setdefault(number, {}).update(decided.extra_attributes[number])
    return extra_attributes, int(folded[indices][decided.sums["is_whole_unit"][indices] != 0].sum())


def decided_name(decided: Decided, name: int) -> str:
    """The name that spans show for one of the tables' names."""
    return display_name(decided.names[name], torch_names=decided.plan.torch_names)
