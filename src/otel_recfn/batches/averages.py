"""Sums of ranges by name, as ``torch.profiler``'s ``key_averages`` has them.

    rows ──► ranges that count ──► a key each: name, shapes, innermost lines of the stack
         ──► groups of equal keys ──► the sums of their measures ──► KeyAverages

The groups stand in the order in which their first ranges began.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.key_average import FindEvent, KeyAverage, KeyAverages
from otel_recfn.batches.measures import (
    Amounts,
    Nesting,
    Rows,
    allocated_bytes,
    direct_children,
    find_nesting,
    own_bytes,
    self_times,
    wait_times,
)
from otel_recfn.batches.number_sets import equals
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import OVERLAPPING, EventSource, RecordScope, RowKind


class _Stacks(NamedTuple):
    """The innermost lines of stacks."""

    texts: list[str]
    """The distinct ones."""
    number: NDArray[np.uint64]
    """The number of each range's."""


class _Groups(NamedTuple):
    """The ranges that are summed up together."""

    first: Rows
    """The first range of each group, as an index."""
    group: Rows
    """The group of each range."""
    size: Rows
    """The number of ranges in each group."""


def key_averages(
    rows: Batch,
    *,
    group_by_input_shape: bool = False,
    group_by_stack_n: int = 0,
    find_event: FindEvent | None = None,
) -> KeyAverages:
    """The averages of a batch's ranges in the order in which they first began: by name, and by
    input shapes and the innermost lines of stacks if asked for.

    A range that is all that ran in another one of its name isn't counted, as in torch.profiler: its
    time for itself is added to the other one's.

    Source: ``EventList.key_averages`` and ``_remove_dup_nodes`` of torch.autograd.profiler_util.
    """
    nested = find_nesting(rows)
    counted_in = _counted_in(rows, nested)
    is_counted = equals(rows.kind, RowKind.RANGE) & (counted_in == np.arange(len(rows)))
    ranges = np.flatnonzero(is_counted)
    ranges = ranges[np.argsort(rows.start_ns[ranges], kind="stable")]
    stacks = _innermost_lines(rows, ranges, group_by_stack_n)
    groups = _groups(rows, ranges, stacks, group_by_input_shape)
    sums = _group_sums(rows, nested, ranges, groups.group, counted_in)
    top_level = _has_outermost(rows, nested, ranges, groups)
    averages = []
    for group in np.argsort(groups.first).tolist():
        first = groups.first[group]
        row = ranges[first]
        averages.append(
            KeyAverage(
                input_shapes=rows.names[rows.shapes[row]] if group_by_input_shape else "",
                count=int(groups.size[group]),
                stack=stacks.texts[stacks.number[first]].splitlines(),
                is_top_level=bool(top_level[group]),
                **{name: summed[group] for name, summed in sums.items()},
                **_facts(rows, row),
                _find_event=find_event,
            )
        )
    return KeyAverages(averages)


def _groups(rows: Batch, ranges: Rows, stacks: _Stacks, by_shapes: bool) -> _Groups:
    """The ranges grouped by name, by the lines of their stacks and, if asked for, by shapes."""
    keys = rows.name[ranges].astype(np.uint64)
    if by_shapes:
        keys = keys << np.uint64(32) | rows.shapes[ranges].astype(np.uint64)
    if len(stacks.texts) > 1:
        keys = np.unique(keys, return_inverse=True)[1].astype(np.uint64)
        keys = keys << np.uint64(32) | stacks.number
    _, first, group, size = np.unique(
        keys, return_index=True, return_inverse=True, return_counts=True
    )
    return _Groups(first, group, size)


def _has_outermost(
    rows: Batch, nested: Nesting, ranges: Rows, groups: _Groups
) -> NDArray[np.bool_]:
    """Whether one of each group's ranges is in no other range."""
    is_nested = np.zeros(len(rows), np.bool_)
    is_nested[nested.child] = True
    found = np.zeros(len(groups.first), np.bool_)
    found[groups.group[~is_nested[ranges]]] = True
    return found


def _group_sums(
    rows: Batch, nested: Nesting, ranges: Rows, group: Rows, counted_in: Rows
) -> dict[str, list[Any]]:
    """The sums of a KeyAverage for each group, by attribute.

    Args:
        group: that of each of the ranges.
        counted_in: as ``_counted_in`` returns it.
    """
    memory, device_memory = [
        allocated_bytes(rows, nested, on_device=on_device) for on_device in (False, True)
    ]
    measures = {
        "cpu_time_total": rows.end_ns - rows.start_ns,
        "self_cpu_time_total": self_times(rows, nested),
        "cpu_memory_usage": memory,
        "self_cpu_memory_usage": own_bytes(rows, nested, memory),
        "device_memory_usage": device_memory,
        "self_device_memory_usage": own_bytes(rows, nested, device_memory),
        "flops": rows.flops,
        "wait_time_total": wait_times(rows),
    }
    repeating = np.flatnonzero(counted_in != np.arange(len(rows)))
    for name in [name for name in measures if name.startswith("self_")]:
        np.add.at(measures[name], counted_in[repeating], measures[name][repeating])
    sums: dict[str, list[Any]] = {}
    for name, measure in measures.items():
        summed: Amounts = np.zeros(int(group.max(initial=-1)) + 1, np.int64)
        np.add.at(summed, group, measure[ranges])
        sums[name] = (summed / 1000 if name.endswith("time_total") else summed).tolist()
    return sums


def _facts(rows: Batch, row: np.int64) -> dict[str, Any]:
    """The attributes of a KeyAverage that its first range says."""
    return {
        "key": rows.names[rows.name[row]],
        "node_id": int(rows.node_id[row]),
        "scope": int(rows.scope[row]),
        "is_async": bool(rows.flags[row] & OVERLAPPING),
        "is_user_annotation": bool(rows.scope[row] == RecordScope.USER_SCOPE),
        "event_id": int(rows.event_id[row]),
    }


def _counted_in(rows: Batch, nested: Nesting) -> Rows:
    """The row that each row counts as: that of the outermost range of its name around it in
    which nothing else ran. Calls of modules may have one name, and each counts.
    """
    child, parent = direct_children(rows, nested)
    is_alone = np.bincount(parent, minlength=len(rows))[parent] == 1
    is_call = equals(rows.source[child], EventSource.MODULE)
    repeats = is_alone & ~is_call & (rows.name[child] == rows.name[parent])
    found: Rows = np.arange(len(rows))
    found[child[repeats]] = parent[repeats]
    while not np.array_equal(found[found], found):
        found = found[found]
    return found


def _innermost_lines(rows: Batch, ranges: Rows, lines: int) -> _Stacks:
    """The innermost lines of the ranges' stacks, this many of each."""
    numbers = {"": 0}
    if not lines:
        return _Stacks(list(numbers), np.zeros(len(ranges), np.uint64))
    distinct, member = np.unique(rows.stack[ranges], return_inverse=True)
    tops = ["\n".join(rows.names[index].splitlines()[:lines]) for index in distinct.tolist()]
    found = np.array([numbers.setdefault(top, len(numbers)) for top in tops], np.uint64)
    return _Stacks(list(numbers), found[member])
