"""The time line: a lane for each thread, the longest ranges one by one, and the others packed into blocks that say how many.

Within a lane a range stands below the one that it lies in. What may overlap its neighbours stands at the lane's end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.number_sets import distinct, is_in, places_in
from otel_recfn.report.rows import GPU, Rows

Numbers = NDArray[np.int64]
MOST_LANES = 64
"""More threads are more than anybody scrolls through."""
MOST_DEPTH = 48
MOST_OVERLAPPING = 6
BINS = 1500
"""A block is at most so small a part of the time: about a pixel."""


def timeline(rows: Rows, processes: list[str], most: int) -> dict[str, Any]:
    """Boxes as columns, lane by lane and row by row, each row from left to right; a start is told as its distance from the one
    before it.

    Args:
        rows: of all processes.
        processes: their labels.
        most: so many ranges one by one; about as many blocks.
    """
    busy = np.zeros(len(rows.lanes), np.int64)
    np.add.at(busy, rows.lane, np.maximum(rows.self_ns, 0))
    used = distinct(rows.lane)
    shown = _in_order(rows, used[np.argsort(-busy[used], kind="stable")][:MOST_LANES])
    levels, depth, step = _nested(rows)
    top = int(rows.start_ns.min()) if len(rows.label) else 0
    fits = is_in(rows.lane, shown)
    kept = _longest(rows, np.flatnonzero(fits & (depth < MOST_DEPTH)), depth, step, most)
    packed = _packed(rows, kept, fits, levels, depth)
    depth = _beside(rows, kept, depth)
    boxes = _boxes(rows, kept, depth, packed, top)
    place = {lane: number for number, lane in enumerate(shown.tolist())}
    boxes["lane"] = np.array([place[lane] for lane in boxes["lane"].tolist()], np.int64)
    order = np.lexsort((boxes["start"], boxes["depth"], boxes["lane"]))
    columns = {name: column[order] for name, column in boxes.items()}
    columns["start"] = np.diff(columns["start"], prepend=0)
    lanes = [{"process": rows.lanes[lane][0], "thread": rows.lanes[lane][1]} for lane in shown.tolist()]
    length = int((rows.start_ns + rows.total_ns).max()) - top if len(rows.label) else 0
    told = {name: column.tolist() for name, column in columns.items()}
    return {"lanes": lanes, "processes": processes, "whole": length, "left_out": len(used) - len(shown), **told}


def _in_order(rows: Rows, lanes: Numbers) -> Numbers:
    """A process after the other: first the lanes with steps, then the busiest, those of GPUs last."""
    with_steps, of_gpus = (np.zeros(len(rows.lanes), np.bool_) for _ in range(2))
    with_steps[rows.lane[rows.step >= 0]] = True
    of_gpus[rows.lane[rows.kind == GPU]] = True
    process = np.array([number for number, _ in rows.lanes], np.int64)
    return lanes[np.lexsort((~with_steps[lanes], of_gpus[lanes], process[lanes]))]


def _nested(rows: Rows) -> tuple[Numbers, Numbers, Numbers]:
    """The ranges in an order in which each stands behind the one that it lies in; in how many ranges of its own lane each lies
    that don't overlap others; and the step around each, or else the outermost range."""
    depth, levels, step = np.zeros(len(rows.label), np.int64), [np.zeros(0, np.int64)], np.arange(len(rows.label))
    by_above = np.argsort(rows.above, kind="stable")
    ordered = rows.above[by_above]
    level = by_above[: np.searchsorted(ordered, 0)]
    while len(level):
        levels.append(level)
        begins = np.searchsorted(ordered, level)
        lengths = np.searchsorted(ordered, level, side="right") - begins
        around, level = np.repeat(level, lengths), by_above[places_in(begins, lengths)]
        in_lane = rows.lane[level] == rows.lane[around]
        depth[level] = np.where(in_lane, depth[around] + ~rows.overlaps[around], 0)
        step[level] = np.where(rows.step[level] >= 0, level, step[around])
    return np.concatenate(levels), depth, step


def _longest(rows: Rows, candidates: Numbers, depth: Numbers, step: Numbers, most: int) -> NDArray[np.bool_]:
    """Which ranges are shown one by one: steps, half of the others by their length, and half so that each step has as many: one
    that took long would leave nothing to the others."""
    kept = np.zeros(len(rows.label), np.bool_)
    length = np.where(rows.step >= 0, np.iinfo(np.int64).max, rows.total_ns)
    candidates = candidates[np.lexsort((depth[candidates], -length[candidates]))]
    kept[candidates[: (most + 1) // 2]] = True
    by_step = candidates[np.argsort(step[candidates], kind="stable")]
    begins = np.flatnonzero(np.diff(step[by_step], prepend=-1))
    rank = np.arange(len(by_step)) - np.repeat(begins, np.diff(np.append(begins, len(by_step))))
    turns = by_step[np.argsort(rank, kind="stable")]  # the longest of each step, then the second of each, ...
    kept[turns[~kept[turns]][: most // 2]] = True
    return kept


def _packed(
    rows: Rows, kept: NDArray[np.bool_], fits: NDArray[np.bool_], levels: Numbers, depth: Numbers
) -> dict[str, Numbers]:
    """Of the ranges that are not kept, those next to each other in one kept range as one block, with all that they contain."""
    around, outermost = rows.above, np.arange(len(kept))
    inside_left_out = (around >= 0) & (rows.lane == rows.lane[around]) & ~kept[around] & ~kept
    for row in levels[inside_left_out[levels]].tolist():
        outermost[row] = outermost[around[row]]
    counts = np.bincount(outermost[~kept & fits], minlength=len(kept))
    seen = np.flatnonzero(kept | (counts > 0))
    return _blocks(rows, kept, depth, counts, seen)


def _blocks(rows: Rows, kept: NDArray[np.bool_], depth: Numbers, counts: Numbers, seen: Numbers) -> dict[str, Numbers]:
    """What is seen and not kept, as far as it stands together.

    Args:
        rows: of all processes.
        kept: which ranges are shown one by one.
        depth: of each range.
        counts: how many ranges each stands for.
        seen: the ranges that are kept, and the outermost of those that are not.
    """
    length = max(1, int((rows.start_ns + rows.total_ns).max() - rows.start_ns.min()) // BINS) if len(kept) else 1
    seen = seen[np.lexsort((rows.start_ns[seen], depth[seen], rows.lane[seen]))]
    key = [rows.lane[seen], depth[seen], rows.above[seen], kept[seen], rows.start_ns[seen] // length]
    changes = np.ones(len(seen), np.bool_)
    changes[1:] = np.any([column[1:] != column[:-1] for column in key], axis=0)
    block = (np.cumsum(changes) - 1)[~kept[seen]]
    members = seen[~kept[seen]]
    numbers, first, block = np.unique(block, return_index=True, return_inverse=True)
    end = np.zeros(len(numbers), np.int64)
    np.maximum.at(end, block, rows.start_ns[members] + rows.total_ns[members])
    summed = {"count": counts, "busy": rows.total_ns}
    sums = {name: np.zeros(len(numbers), np.int64) for name in summed}
    for name, column in summed.items():
        np.add.at(sums[name], block, column[members])
    firsts = members[first]
    return {"lane": rows.lane[firsts], "depth": depth[firsts], "start": rows.start_ns[firsts], "end": end, **sums}


def _beside(rows: Rows, kept: NDArray[np.bool_], depth: Numbers) -> Numbers:
    """The depths, where ranges that overlap others stand below all else in their lane, beside each other."""
    depth = depth.copy()
    overlapping = np.flatnonzero(kept & rows.overlaps)
    if not len(overlapping):
        return depth
    ends: dict[tuple[int, int], int] = {}
    deepest = np.zeros(len(rows.lanes), np.int64)
    np.maximum.at(deepest, rows.lane[kept], depth[kept] + 1)
    for row in overlapping[np.argsort(rows.start_ns[overlapping], kind="stable")].tolist():
        lane, start = int(rows.lane[row]), int(rows.start_ns[row])
        free = (slot for slot in range(MOST_OVERLAPPING) if ends.get((lane, slot), 0) <= start)
        slot = next(free, MOST_OVERLAPPING - 1)
        ends[lane, slot] = start + int(rows.total_ns[row])
        depth[row] = deepest[lane] + slot
    return depth


def _boxes(rows: Rows, kept: NDArray[np.bool_], depth: Numbers, packed: dict[str, Numbers], top: int) -> dict[str, Numbers]:
    """Ranges and blocks; a block has no name, and how many it stands for, of a range 0."""
    blocks = len(packed["start"])
    each: dict[str, tuple[Numbers, Numbers]] = {
        "lane": (rows.lane[kept], packed["lane"]),
        "depth": (depth[kept], packed["depth"]),
        "start": (rows.start_ns[kept] - top, packed["start"] - top),
        "length": (rows.total_ns[kept], packed["end"] - packed["start"]),
        "name": (rows.label[kept], np.full(blocks, -1, np.int64)),
        "kind": (rows.kind[kept], np.full(blocks, -1, np.int64)),
        "count": (np.zeros(int(kept.sum()), np.int64), packed["count"]),
        "busy": (rows.self_ns[kept], packed["busy"]),
        "cpu": (rows.cpu_ns[kept], np.full(blocks, -1, np.int64)),
        "step": (rows.step[kept], np.full(blocks, -1, np.int64)),
    }
    return {name: np.concatenate(pair) for name, pair in each.items()}
