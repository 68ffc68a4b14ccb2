"""The flame graph and the table: ranges summed up by call path, and by name."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn.report.recording import Recording

Numbers = NDArray[np.int64]


def flame(seen: Recording, most: int) -> dict[str, Any]:
    """The tree of calls as columns, parents before their children: exact sums, of whatever threads.

    Args:
        seen: what was recorded.
        most: so many frames, the longest and what they lie in. The others are summed up in frames without a name, one for each
            frame that is kept.
    """
    sums, path, frames = seen.sums, seen.path, len(seen.names)
    allocated, cpu_ns, unknown = np.zeros(frames, np.int64), np.zeros(frames, np.int64), np.zeros(frames, np.bool_)
    np.add.at(allocated, path, seen.allocated)
    np.add.at(cpu_ns, path, np.maximum(seen.cpu_ns, 0))
    unknown[path[seen.cpu_ns < 0]] = True
    cpu_ns[unknown | (sums.count == 0)] = -1
    columns = {
        "name": seen.paths.label,
        "above": seen.paths.above,
        "count": sums.count,
        "total": sums.total_ns,
        "self": sums.self_ns,
        "longest": sums.longest_ns,
        "cpu": cpu_ns,
        "allocated": allocated,
        "kind": seen.path_kind,
    }
    return {"names": seen.labels, **_longest(columns, most)}


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


def table(seen: Recording, most: int | None = None) -> dict[str, Any]:
    """The ranges summed up by name, those with most time for themselves first; ``left_out`` is how many names are not in it."""
    count = int(seen.label.max(initial=-1)) + 1
    sums = seen.sums_by(seen.label, count)
    kind, allocated = np.zeros(count, np.int64), np.zeros(count, np.int64)
    kind[seen.label] = seen.kind
    np.add.at(allocated, seen.label, seen.allocated)
    order = np.argsort(-sums.self_ns, kind="stable")[:most]
    columns = {"count": sums.count, "total": sums.total_ns, "self": sums.self_ns, "longest": sums.longest_ns}
    columns |= {"allocated": allocated, "kind": kind}
    names = [seen.labels[index] for index in order.tolist()]
    return {
        "names": names,
        **{name: column[order].tolist() for name, column in columns.items()},
        "left_out": count - len(order),
    }
