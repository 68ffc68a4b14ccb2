"""The flame graph and the table: ranges summed up by call path, and by name."""

from __future__ import annotations

from typing import Any

import numpy as np

from otel_recfn.batches.call_paths import longest_paths
from otel_recfn.batches.number_sets import nearest
from otel_recfn.report.nesting import Numbers
from otel_recfn.report.recording import Recording

SUMMED_UP = ("count", "total", "self", "allocated")


def flame(recording: Recording, limit: int) -> dict[str, Any]:
    """The flame graph's frames as columns, parents before their children: exact sums over all
    threads.

    Args:
        recording: the recording.
        limit: the number of frames that are kept: the longest, and those around them. The others
            are summed up in frames without a name, at most one in each kept frame, and one at the
            top.
    """
    sums = recording.sums_by_path
    path = recording.path
    frames = len(recording.names)
    allocated = np.zeros(frames, np.int64)
    cpu_ns = np.zeros(frames, np.int64)
    unknown = np.zeros(frames, np.bool_)
    np.add.at(allocated, path, recording.allocated)
    np.add.at(cpu_ns, path, np.maximum(recording.cpu_ns, 0))
    unknown[path[recording.cpu_ns < 0]] = True
    cpu_ns[unknown | (sums.count == 0)] = -1
    columns = {
        "name": recording.paths.label,
        "above": recording.paths.parent,
        "count": sums.count,
        "total": _totals(recording),
        "self": sums.self_ns,
        "mean": sums.total_ns // np.maximum(sums.count, 1),
        "longest": sums.longest_ns,
        "longest_at": recording.begin_offsets(recording.longest_of(path, frames)),
        "cpu": cpu_ns,
        "allocated": allocated,
        "kind": recording.path_kind,
    }
    return {"names": recording.labels, **_longest_and_others(columns, limit)}


def _totals(recording: Recording) -> Numbers:
    """The total time of each path.

    A moment in which its ranges overlap counts once; a group has the time of its members.
    """
    total = np.array(recording.sums_by_path.total_ns)
    parent = recording.paths.parent
    overlapping = np.flatnonzero(recording.overlaps)
    overlapping = overlapping[
        np.lexsort((recording.start_ns[overlapping], recording.path[overlapping]))
    ]
    begins = np.flatnonzero(np.diff(recording.path[overlapping], prepend=-1))
    for ranges in np.split(overlapping, begins[1:]):
        reached = np.maximum.accumulate(recording.end_ns[ranges])[:-1]
        twice = np.minimum(recording.end_ns[ranges[1:]], reached) - recording.start_ns[ranges[1:]]
        total[recording.path[ranges[:1]]] -= np.maximum(twice, 0).sum()
    groups = {*recording.paths.row_path[len(recording) :].tolist()}
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


def table(recording: Recording, limit: int | None = None) -> dict[str, Any]:
    """The ranges summed up by name, those with most time for themselves first.

    ``shared`` is the part of that in the run's time, ``whole``, in which no moment counts twice;
    ``longest_at`` is where the longest range begins in the time line; ``left_out`` is how many
    names are not in it.
    """
    count = int(recording.label.max(initial=-1)) + 1
    # Otherwise annotations on a GPU would count to the blocks of the CPU.
    is_displayed = ~recording.is_marker
    sums = recording.sums_by(np.where(is_displayed, recording.label, count), count + 1)
    kind = np.zeros(count, np.int64)
    allocated = np.zeros(count, np.int64)
    np.maximum.at(kind, recording.label[is_displayed], recording.kind[is_displayed])
    np.add.at(allocated, recording.label, recording.allocated)
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
    longest = recording.longest_of(np.where(is_displayed, recording.label, count), count + 1)
    columns["longest_at"] = recording.begin_offsets(longest[:count])
    columns["shared"] = np.rint(
        np.bincount(recording.label, recording.shared_time.own_ns, count)
    ).astype(np.int64)
    names = [recording.labels[index] for index in order.tolist()]
    return {
        "names": names,
        **{name: column[order].tolist() for name, column in columns.items()},
        "whole": recording.whole_ns,
        "left_out": len(displayed) - len(order),
    }
