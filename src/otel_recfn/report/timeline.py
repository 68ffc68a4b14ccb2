"""The time line: a lane for each thread, the longest ranges one by one, and the others packed into blocks that say how many.

Within a lane a range stands below the one that it lies in. What may overlap its neighbours stands at the lane's end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from otel_recfn.batches.number_sets import distinct, is_in
from otel_recfn.report.nesting import Mask, Numbers
from otel_recfn.report.recording import GPU, Recording

MOST_LANES = 64
"""More threads are more than anybody scrolls through."""
MOST_DEPTH = 48
MOST_OVERLAPPING = 6
BINS = 1500
"""A block is at most so small a part of the time: about a pixel."""


def timeline(seen: Recording, most: int) -> dict[str, Any]:
    """Boxes as columns, lane by lane and row by row, each row from left to right; a start is told as its distance from the one
    before it.

    Args:
        seen: what was recorded.
        most: so many ranges one by one; about as many blocks.
    """
    busy = np.zeros(len(seen.lanes), np.int64)
    np.add.at(busy, seen.lane, np.maximum(seen.self_ns, 0))
    used = distinct(seen.lane)
    shown = _in_order(seen, used[np.argsort(-busy[used], kind="stable")][:MOST_LANES])
    depth = _depths(seen)
    top = int(seen.start_ns.min())
    fits = is_in(seen.lane, shown)
    kept = _longest(seen, np.flatnonzero(fits & (depth < MOST_DEPTH)), depth, most)
    packed = _packed(seen, kept, fits, depth)
    depth = _beside(seen, kept, depth)
    boxes = _boxes(seen, kept, depth, packed, top)
    place = {lane: number for number, lane in enumerate(shown.tolist())}
    boxes["lane"] = np.array([place[lane] for lane in boxes["lane"].tolist()], np.int64)
    order = np.lexsort((boxes["start"], boxes["depth"], boxes["lane"]))
    columns = {name: column[order] for name, column in boxes.items()}
    columns["start"] = np.diff(columns["start"], prepend=0)
    lanes = [{"process": seen.lanes[lane][0], "thread": seen.lanes[lane][1]} for lane in shown.tolist()]
    length = int(seen.end_ns.max()) - top
    told = {name: column.tolist() for name, column in columns.items()}
    return {
        "lanes": lanes,
        "processes": [process.label for process in seen.processes],
        "whole": length,
        "left_out": len(used) - len(shown),
        **told,
    }


def _in_order(seen: Recording, lanes: Numbers) -> Numbers:
    """A process after the other: first the lanes with steps, then the busiest, those of GPUs last."""
    with_steps, of_gpus = (np.zeros(len(seen.lanes), np.bool_) for _ in range(2))
    with_steps[seen.lane[seen.step >= 0]] = True
    of_gpus[seen.lane[seen.kind == GPU]] = True
    process = np.array([number for number, _ in seen.lanes], np.int64)
    return lanes[np.lexsort((~with_steps[lanes], of_gpus[lanes], process[lanes]))]


def _depths(seen: Recording) -> Numbers:
    """In how many ranges of its own lane each lies that don't overlap others."""
    depth = np.zeros(len(seen), np.int64)
    ranges, around = np.arange(len(seen)), seen.around
    while len(ranges := ranges[around >= 0]):
        around = around[around >= 0]
        depth[ranges] += ~seen.overlaps[around]
        around = seen.around[around]
    return depth


def _longest(seen: Recording, candidates: Numbers, depth: Numbers, most: int) -> Mask:
    """Which ranges are shown one by one: steps, and the longest others."""
    kept = np.zeros(len(seen), np.bool_)
    length = np.where(seen.step >= 0, np.iinfo(np.int64).max, seen.total_ns)
    kept[candidates[np.lexsort((depth[candidates], -length[candidates]))][:most]] = True
    return kept


def _packed(seen: Recording, kept: Mask, fits: Mask, depth: Numbers) -> dict[str, Numbers]:
    """Of the ranges that are not kept, those next to each other in one kept range as one block, with all that they contain."""
    outermost = seen.nearest(np.arange(len(seen)), (seen.around < 0) | kept | kept[seen.around])
    counts = np.bincount(outermost[~kept & fits], minlength=len(kept))
    shown = np.flatnonzero(kept | (counts > 0))
    shown = shown[np.lexsort((seen.start_ns[shown], depth[shown], seen.lane[shown]))]
    bins = seen.start_ns // max(1, int(seen.end_ns.max() - seen.start_ns.min()) // BINS)
    changes = [np.diff(column[shown]) != 0 for column in (seen.lane, depth, seen.above, kept, bins)]
    block, members = np.append(0, np.cumsum(np.any(changes, axis=0)))[~kept[shown]], shown[~kept[shown]]
    _, first, block = np.unique(block, return_index=True, return_inverse=True)
    end, count, busy = (np.zeros(len(first), np.int64) for _ in range(3))
    np.maximum.at(end, block, seen.end_ns[members])
    np.add.at(count, block, counts[members])
    np.add.at(busy, block, seen.total_ns[members])
    row = members[first]
    return {"lane": seen.lane[row], "depth": depth[row], "start": seen.start_ns[row], "end": end, "count": count, "busy": busy}


def _beside(seen: Recording, kept: Mask, depth: Numbers) -> Numbers:
    """The depths, where ranges that overlap others stand below all else in their lane, beside each other."""
    depth = depth.copy()
    overlapping = np.flatnonzero(kept & seen.overlaps)
    if not len(overlapping):
        return depth
    ends: dict[tuple[int, int], int] = {}
    deepest = np.zeros(len(seen.lanes), np.int64)
    np.maximum.at(deepest, seen.lane[kept], depth[kept] + 1)
    for row in overlapping[np.argsort(seen.start_ns[overlapping], kind="stable")].tolist():
        lane, start = int(seen.lane[row]), int(seen.start_ns[row])
        free = (slot for slot in range(MOST_OVERLAPPING) if ends.get((lane, slot), 0) <= start)
        slot = next(free, MOST_OVERLAPPING - 1)
        ends[lane, slot] = start + int(seen.total_ns[row])
        depth[row] = deepest[lane] + slot
    return depth


def _boxes(seen: Recording, kept: Mask, depth: Numbers, packed: dict[str, Numbers], top: int) -> dict[str, Numbers]:
    """Ranges and blocks; a block has no name, and how many it stands for, of a range 0."""
    blocks = len(packed["start"])
    each: dict[str, tuple[Numbers, Numbers]] = {
        "lane": (seen.lane[kept], packed["lane"]),
        "depth": (depth[kept], packed["depth"]),
        "start": (seen.start_ns[kept] - top, packed["start"] - top),
        "length": (seen.total_ns[kept], packed["end"] - packed["start"]),
        "name": (seen.label[kept], np.full(blocks, -1, np.int64)),
        "kind": (seen.kind[kept], np.full(blocks, -1, np.int64)),
        "count": (np.zeros(int(kept.sum()), np.int64), packed["count"]),
        "busy": (seen.self_ns[kept], packed["busy"]),
        "cpu": (seen.cpu_ns[kept], np.full(blocks, -1, np.int64)),
        "step": (seen.step[kept], np.full(blocks, -1, np.int64)),
    }
    return {name: np.concatenate(pair) for name, pair in each.items()}
