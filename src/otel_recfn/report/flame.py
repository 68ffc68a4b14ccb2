"""The flame graph and the table: ranges summed up by call path, and by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.call_paths import Paths, PathSums, call_paths, sums_of_ranges
from otel_recfn.report.rows import GPU, Rows

Numbers = NDArray[np.int64]
ON_GPU = "on the GPU"


def flame(rows: Rows, processes: Sequence[str], most: int) -> dict[str, Any]:
    """The tree of calls as columns, parents before their children: exact sums, of whatever threads.

    Args:
        rows: of all processes.
        processes: their labels: where there are several, each is a frame of its own.
        most: so many frames, the longest and what they lie in. The others are summed up in frames without a name, one for each
            frame that is kept.
    """
    above, label, names = _with_groups(rows, processes)
    paths = call_paths(above, label)
    count = len(rows.label)
    of_row, frames = paths.of_row[:count], len(paths.above)
    sums = sums_of_ranges(of_row, frames, rows.ranges)
    _add_up_groups(paths, sums)
    kind = np.full(frames, -1, np.int64)
    kind[paths.of_row[count:]] = [GPU if names[each] == ON_GPU else -1 for each in label[count:].tolist()]
    kind[of_row] = rows.kind
    allocated, cpu_ns, unknown = np.zeros(frames, np.int64), np.zeros(frames, np.int64), np.zeros(frames, np.bool_)
    np.add.at(allocated, of_row, rows.allocated)
    np.add.at(cpu_ns, of_row, np.maximum(rows.cpu_ns, 0))
    unknown[of_row[rows.cpu_ns < 0]] = True
    cpu_ns[unknown | (sums.count == 0)] = -1
    columns = {
        "name": paths.label,
        "above": paths.above,
        "count": sums.count,
        "total": sums.total_ns,
        "self": sums.self_ns,
        "longest": sums.longest_ns,
        "cpu": cpu_ns,
        "allocated": allocated,
        "kind": kind,
    }
    return {"names": names, **_longest(columns, most)}


def _with_groups(rows: Rows, processes: Sequence[str]) -> tuple[Numbers, Numbers, list[str]]:
    """Frames behind the ranges: of each process, where there are several, and of its GPU, whose time isn't the program's."""
    names, above, label = [*rows.labels], rows.above.copy(), rows.label
    top, on_gpu = above < 0, rows.kind == GPU
    groups_above, groups_label = [], []

    def group(name: str, inside: int, members: NDArray[np.bool_]) -> int:
        names.append(name)
        groups_above.append(inside)
        groups_label.append(len(names) - 1)
        above[members] = place = len(rows.label) + len(groups_above) - 1
        return place

    for number, name in enumerate(processes):
        of_process = top & (rows.process == number)
        around = group(name, -1, of_process) if len(processes) > 1 else -1
        if bool((of_process & on_gpu).any()) and not bool(on_gpu[of_process].all()):
            group(ON_GPU, around, of_process & on_gpu)
    return np.append(above, groups_above).astype(np.int64), np.append(label, groups_label).astype(np.int64), names


def _add_up_groups(paths: Paths, sums: PathSums) -> None:
    """A group's time is its members'."""
    groups = set(np.flatnonzero(sums.count == 0).tolist())
    for path in range(len(paths.above) - 1, -1, -1) if groups else ():
        if int(paths.above[path]) in groups:
            sums.total_ns[paths.above[path]] += sums.total_ns[path]


def _longest(columns: dict[str, Numbers], most: int) -> dict[str, list[int]]:
    """The longest frames with what they lie in, and behind them the others, summed up."""
    above = columns["above"].tolist()
    kept = _kept(above, columns["total"], most)
    place, found = _places(above, kept)
    shown = {name: column[found].tolist() for name, column in columns.items()}
    shown["above"] = [place[above[path]] if above[path] >= 0 else -1 for path in found]
    rest: dict[int, int] = {}
    counts, totals, own, allocated = [columns[name].tolist() for name in ("count", "total", "self", "allocated")]
    for path in np.flatnonzero(~kept).tolist():
        inside = place[path]
        if inside not in rest:
            rest[inside] = len(shown["name"])
            empty = {"name": -1, "above": inside, "cpu": -1}
            for name, column in shown.items():
                column.append(empty.get(name, 0))
        frame = rest[inside]
        shown["count"][frame] += counts[path]
        shown["self"][frame] += own[path]
        shown["allocated"][frame] += allocated[path]
        if above[path] < 0 or kept[above[path]]:
            shown["total"][frame] += totals[path]
    return shown


def _kept(above: list[int], total: Numbers, most: int) -> NDArray[np.bool_]:
    """Which frames are the longest, with what they lie in."""
    kept, left = np.zeros(len(above), np.bool_), most
    for path in np.argsort(-total, kind="stable").tolist():
        around = []
        while path >= 0 and not kept[path]:
            around.append(path)
            path = above[path]
        if len(around) <= left:
            left -= len(around)
            kept[around] = True
        if not left:
            break
    return kept


def _places(above: list[int], kept: NDArray[np.bool_]) -> tuple[list[int], list[int]]:
    """Of each path its place among those that are kept, else that of the innermost kept one around it, -1 where there is none;
    and the kept ones."""
    place: list[int] = [-1] * len(above)
    found: list[int] = []
    for path, inside in enumerate(above):
        if kept[path]:
            place[path] = len(found)
            found.append(path)
        elif inside >= 0:
            place[path] = place[inside]
    return place, found


def table(rows: Rows, most: int) -> dict[str, Any]:
    """The ranges of all processes summed up by name, those with most time for themselves first; ``left_out`` is how many names
    are not in it."""
    count = len(rows.labels)
    sums = sums_of_ranges(rows.label, count, rows.ranges)
    kind, allocated = np.zeros(count, np.int64), np.zeros(count, np.int64)
    kind[rows.label] = rows.kind
    np.add.at(allocated, rows.label, rows.allocated)
    order = np.argsort(-sums.self_ns, kind="stable")[:most]
    columns = {"count": sums.count, "total": sums.total_ns, "self": sums.self_ns, "longest": sums.longest_ns}
    columns |= {"allocated": allocated, "kind": kind}
    names = [rows.labels[index] for index in order.tolist()]
    return {
        "names": names,
        **{name: column[order].tolist() for name, column in columns.items()},
        "left_out": count - len(order),
    }
