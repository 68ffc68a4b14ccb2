"""The flame graph and the table: ranges summed up by call path, and by name."""

from __future__ import annotations

from typing import Any

import numpy as np

from otel_recfn.batches.call_paths import longest_paths
from otel_recfn.report.nesting import Numbers
from otel_recfn.report.recording import Recording

SUMMED_UP = ("count", "total", "self", "allocated")


def flame(seen: Recording, most: int) -> dict[str, Any]:
    """The flame graph's frames as columns, parents before their children: exact sums over all threads.

    Args:
        seen: the recording.
        most: the frames that are kept: the longest, and those around them. The others are summed up in frames without a name,
            at most one in each kept frame, and one at the top.
    """
    sums, path, frames = seen.sums_by_path, seen.path, len(seen.names)
    allocated, cpu_ns, unknown = (
        np.zeros(frames, np.int64),
        np.zeros(frames, np.int64),
        np.zeros(frames, np.bool_),
    )
    np.add.at(allocated, path, seen.allocated)
    np.add.at(cpu_ns, path, np.maximum(seen.cpu_ns, 0))
    unknown[path[seen.cpu_ns < 0]] = True
    cpu_ns[unknown | (sums.count == 0)] = -1
    columns = {
        "name": seen.paths.label,
        "above": seen.paths.above,
        "count": sums.count,
        "total": _totals(seen),
        "self": sums.self_ns,
        "mean": sums.total_ns // np.maximum(sums.count, 1),
        "longest": sums.longest_ns,
        "cpu": cpu_ns,
        "allocated": allocated,
        "kind": seen.path_kind,
    }
    return {"names": seen.labels, **_longest_and_others(columns, most)}


def _totals(seen: Recording) -> Numbers:
    """The total time of each path. A moment in which its ranges overlap counts once; a group has the time of its members."""
    total, above = np.array(seen.sums_by_path.total_ns), seen.paths.above
    overlapping = np.flatnonzero(seen.overlaps)
    overlapping = overlapping[np.lexsort((seen.start_ns[overlapping], seen.path[overlapping]))]
    begins = np.flatnonzero(np.diff(seen.path[overlapping], prepend=-1))
    for ranges in np.split(overlapping, begins[1:]):
        reached = np.maximum.accumulate(seen.end_ns[ranges])[:-1]
        twice = np.minimum(seen.end_ns[ranges[1:]], reached) - seen.start_ns[ranges[1:]]
        total[seen.path[ranges[:1]]] -= np.maximum(twice, 0).sum()
    groups = {*seen.paths.of_row[len(seen) :].tolist()}
    for path in range(len(total) - 1, -1, -1) if groups else ():
        if int(above[path]) in groups:
            total[above[path]] += total[path]
    return total


def _longest_and_others(columns: dict[str, Numbers], most: int) -> dict[str, list[int]]:
    """The longest frames and those around them, as columns; behind them stand the sums of the others."""
    kept = np.zeros(len(columns["above"]), np.bool_)
    kept[
        list(
            longest_paths(
                columns["above"], np.argsort(-columns["total"], kind="stable").tolist(), most
            )
        )
    ] = True
    inside = columns["above"].copy()
    while len(left_out := np.flatnonzero((inside >= 0) & ~kept[inside])):
        inside[left_out] = columns["above"][inside[left_out]]
    is_outermost = inside == columns["above"]
    around = np.where(inside >= 0, np.cumsum(kept)[inside] - 1, -1)
    holders, rest = np.unique(around[~kept], return_inverse=True)
    shown = {}
    for name, column in columns.items():
        of_rest = np.full(len(holders), -1 if name in ("name", "cpu") else 0)
        if name in SUMMED_UP:
            np.add.at(of_rest, rest, np.where(is_outermost | (name != "total"), column, 0)[~kept])
        shown[name] = np.append(column[kept], of_rest).tolist()
    return {**shown, "above": np.append(around[kept], holders).tolist()}


def table(seen: Recording, most: int | None = None) -> dict[str, Any]:
    """The ranges summed up by name, those with most time for themselves first; ``left_out`` is how many names are not in it."""
    count = int(seen.label.max(initial=-1)) + 1
    sums = seen.sums_by(seen.label, count)
    kind, allocated = np.zeros(count, np.int64), np.zeros(count, np.int64)
    kind[seen.label] = seen.kind
    np.add.at(allocated, seen.label, seen.allocated)
    order = np.argsort(-sums.self_ns, kind="stable")[:most]
    columns = {
        "count": sums.count,
        "total": sums.total_ns,
        "self": sums.self_ns,
        "longest": sums.longest_ns,
    }
    columns |= {"allocated": allocated, "kind": kind}
    names = [seen.labels[index] for index in order.tolist()]
    return {
        "names": names,
        **{name: column[order].tolist() for name, column in columns.items()},
        "left_out": count - len(order),
    }
