"""The flame graph and the table: ranges summed up by call path, and by name."""

from __future__ import annotations

from typing import Any

import numpy as np

from otel_recfn.batches.call_paths import longest_paths
from otel_recfn.batches.number_sets import nearest
from otel_recfn.report.nesting import Numbers
from otel_recfn.report.recording import Recording

SUMMED_UP = ("count", "total", "self", "allocated")


def flame(seen: Recording, limit: int) -> dict[str, Any]:
    """The flame graph's frames as columns, parents before their children: exact sums over all
    threads.

    Args:
        seen: the recording.
        most: the frames that are kept: the longest, and those around them. The others are summed up
            in frames without a name, at most one in each kept frame, and one at the top.
    """
    sums = seen.sums_by_path
    path = seen.path
    frames = len(seen.names)
    allocated = np.zeros(frames, np.int64)
    cpu_ns = np.zeros(frames, np.int64)
    unknown = np.zeros(frames, np.bool_)
    np.add.at(allocated, path, seen.allocated)
    np.add.at(cpu_ns, path, np.maximum(seen.cpu_ns, 0))
    unknown[path[seen.cpu_ns < 0]] = True
    cpu_ns[unknown | (sums.count == 0)] = -1
    columns = {
        "name": seen.paths.label,
        "above": seen.paths.parent,
        "count": sums.count,
        "total": _totals(seen),
        "self": sums.self_ns,
        "mean": sums.total_ns // np.maximum(sums.count, 1),
        "longest": sums.longest_ns,
        "cpu": cpu_ns,
        "allocated": allocated,
        "kind": seen.path_kind,
    }
    return {"names": seen.labels, **_longest_and_others(columns, limit)}


def _totals(seen: Recording) -> Numbers:
    """The total time of each path.

    A moment in which its ranges overlap counts once; a group has the time of its members.
    """
    total = np.array(seen.sums_by_path.total_ns)
    parent = seen.paths.parent
    overlapping = np.flatnonzero(seen.overlaps)
    overlapping = overlapping[np.lexsort((seen.start_ns[overlapping], seen.path[overlapping]))]
    begins = np.flatnonzero(np.diff(seen.path[overlapping], prepend=-1))
    for ranges in np.split(overlapping, begins[1:]):
        reached = np.maximum.accumulate(seen.end_ns[ranges])[:-1]
        twice = np.minimum(seen.end_ns[ranges[1:]], reached) - seen.start_ns[ranges[1:]]
        total[seen.path[ranges[:1]]] -= np.maximum(twice, 0).sum()
    groups = {*seen.paths.of_row[len(seen) :].tolist()}
    for path in range(len(total) - 1, -1, -1) if groups else ():
        if int(parent[path]) in groups:
            total[parent[path]] += total[path]
    return total


def _longest_and_others(columns: dict[str, Numbers], limit: int) -> dict[str, list[int]]:
    """The longest frames and those around them, as columns; behind them stand the sums of the
    others.
    """
    selected = np.zeros(len(columns["above"]), np.bool_)
    selected[
        list(
            longest_paths(
                columns["above"], np.argsort(-columns["total"], kind="stable").tolist(), limit
            )
        )
    ] = True
    inside = np.where(
        columns["above"] >= 0, nearest(columns["above"], selected)[columns["above"]], -1
    )
    is_outermost = inside == columns["above"]
    enclosing = np.where(inside >= 0, np.cumsum(selected)[inside] - 1, -1)
    parents, group = np.unique(enclosing[~selected], return_inverse=True)
    displayed = {}
    for name, column in columns.items():
        other = np.full(len(parents), -1 if name in ("name", "cpu") else 0)
        if name in SUMMED_UP:
            np.add.at(
                other, group, np.where(is_outermost | (name != "total"), column, 0)[~selected]
            )
        displayed[name] = np.append(column[selected], other).tolist()
    return {**displayed, "above": np.append(enclosing[selected], parents).tolist()}


def table(seen: Recording, limit: int | None = None) -> dict[str, Any]:
    """The ranges summed up by name, those with most time for themselves first.

    ``shared`` is the part of that in the run's time, ``whole``, in which no moment counts twice;
    ``left_out`` is how many names are not in it.
    """
    count = int(seen.label.max(initial=-1)) + 1
    is_displayed = ~seen.is_marker  # else annotations on a GPU would count to the blocks of the CPU
    sums = seen.sums_by(np.where(is_displayed, seen.label, count), count + 1)
    kind = np.zeros(count, np.int64)
    allocated = np.zeros(count, np.int64)
    kind[seen.label[is_displayed]] = seen.kind[is_displayed]
    np.add.at(allocated, seen.label, seen.allocated)
    by_self = np.argsort(-sums.self_ns[:count], kind="stable")
    displayed = by_self[sums.count[by_self] > 0]
    order = displayed[:limit]
    columns = {
        "count": sums.count,
        "total": sums.total_ns,
        "self": sums.self_ns,
        "longest": sums.longest_ns,
    }
    columns |= {"allocated": allocated, "kind": kind}
    columns["shared"] = np.rint(np.bincount(seen.label, seen.shared_time.own_ns, count)).astype(
        np.int64
    )
    names = [seen.labels[index] for index in order.tolist()]
    return {
        "names": names,
        **{name: column[order].tolist() for name, column in columns.items()},
        "whole": seen.whole_ns,
        "left_out": len(displayed) - len(order),
    }
