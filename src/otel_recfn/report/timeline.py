"""The time line: a lane for each thread, the longest ranges one by one, and the others packed into blocks that say how many.

In a lane, a range stands below the one that it lies in, and ranges that overlap their neighbours stand below all others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from otel_recfn.batches.number_sets import distinct, is_in
from otel_recfn.report.nesting import Mask, Numbers
from otel_recfn.report.recording import GPU, Recording

MOST_LANES = 64
"""The most threads that are shown: nobody scrolls through more."""
MOST_DEPTH = 48
MOST_OVERLAPPING = 6
BINS = 1500
"""The parts of the time line, about a pixel each: ranges that begin in different parts are packed into different blocks."""


def timeline(seen: Recording, most: int) -> dict[str, Any]:
    """The boxes as columns, lane by lane and row by row, each row from left to right. A start is the distance from the one
    before, which takes fewer digits.

    Args:
        seen: the recording.
        most: the ranges that are shown one by one; there may be about as many blocks.
    """
    busy = np.zeros(len(seen.lanes), np.int64)
    np.add.at(busy, seen.lane, np.maximum(seen.self_ns, 0))
    used = distinct(seen.lane)
    shown = _lanes_in_order(seen, used[np.argsort(-busy[used], kind="stable")][:MOST_LANES])
    depth = _depths(seen)
    top = int(seen.start_ns.min())
    fits = is_in(seen.lane, shown)
    kept = _shown_one_by_one(seen, np.flatnonzero(fits & (depth < MOST_DEPTH)), depth, most)
    packed = _packed_blocks(seen, kept, fits, depth)
    depth = _with_overlapping_below(seen, kept, depth)
    boxes = _boxes(seen, kept, depth, packed, top)
    place = {lane: number for number, lane in enumerate(shown.tolist())}
    boxes["lane"] = np.array([place[lane] for lane in boxes["lane"].tolist()], np.int64)
    order = np.lexsort((boxes["start"], boxes["depth"], boxes["lane"]))
    columns = {name: column[order] for name, column in boxes.items()}
    columns["start"] = np.diff(columns["start"], prepend=0)
    lanes = [
        {"process": seen.lanes[lane][0], "thread": seen.lanes[lane][1]} for lane in shown.tolist()
    ]
    told = {name: column.tolist() for name, column in columns.items()}
    return {
        "lanes": lanes,
        "processes": [process.label for process in seen.processes],
        "whole": int(seen.end_ns.max()) - top,
        "left_out": len(used) - len(shown),
        **told,
    }


def _lanes_in_order(seen: Recording, lanes: Numbers) -> Numbers:
    """The lanes, given the busiest first, by process: lanes with steps come first, those of GPUs last."""
    with_steps, of_gpus = (np.zeros(len(seen.lanes), np.bool_) for _ in range(2))
    with_steps[seen.lane[seen.step >= 0]] = True
    of_gpus[seen.lane[seen.kind == GPU]] = True
    process = np.array([number for number, _ in seen.lanes], np.int64)
    return lanes[np.lexsort((~with_steps[lanes], of_gpus[lanes], process[lanes]))]


def _depths(seen: Recording) -> Numbers:
    """The number of ranges around each in its lane, without those that overlap others."""
    depth = np.zeros(len(seen), np.int64)
    ranges, around = np.arange(len(seen)), seen.above_in_thread
    while len(ranges := ranges[around >= 0]):
        around = around[around >= 0]
        depth[ranges] += ~seen.overlaps[around]
        around = seen.above_in_thread[around]
    return depth


def _shown_one_by_one(seen: Recording, candidates: Numbers, depth: Numbers, most: int) -> Mask:
    """Whether each range is shown one by one: steps are, and the longest others."""
    kept = np.zeros(len(seen), np.bool_)
    length = np.where(seen.step >= 0, np.iinfo(np.int64).max, seen.total_ns)
    kept[candidates[np.lexsort((depth[candidates], -length[candidates]))][:most]] = True
    return kept


def _packed_blocks(seen: Recording, kept: Mask, fits: Mask, depth: Numbers) -> dict[str, Numbers]:
    """The blocks, as columns: ranges that are not kept, packed with their neighbours in the same range, and all inside them."""
    around = seen.above_in_thread
    outermost = seen.nearest(np.arange(len(seen)), (around < 0) | kept | kept[around])
    counts = np.bincount(outermost[~kept & fits], minlength=len(kept))
    shown = np.flatnonzero(kept | (counts > 0))
    shown = shown[np.lexsort((seen.start_ns[shown], depth[shown], seen.lane[shown]))]
    bins = seen.start_ns // max(1, int(seen.end_ns.max() - seen.start_ns.min()) // BINS)
    changes = [np.diff(column[shown]) != 0 for column in (seen.lane, depth, seen.above, kept, bins)]
    block, members = (
        np.append(0, np.cumsum(np.any(changes, axis=0)))[~kept[shown]],
        shown[~kept[shown]],
    )
    _, first, block = np.unique(block, return_index=True, return_inverse=True)
    end, count, busy = (np.zeros(len(first), np.int64) for _ in range(3))
    np.maximum.at(end, block, seen.end_ns[members])
    np.add.at(count, block, counts[members])
    np.add.at(busy, block, seen.total_ns[members])
    row = members[first]
    return {
        "lane": seen.lane[row],
        "depth": depth[row],
        "start": seen.start_ns[row],
        "end": end,
        "count": count,
        "busy": busy,
    }


def _with_overlapping_below(seen: Recording, kept: Mask, depth: Numbers) -> Numbers:
    """The depths, changed so that kept ranges that overlap others stand below all else in their lane, beside each other."""
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


def _boxes(
    seen: Recording, kept: Mask, depth: Numbers, packed: dict[str, Numbers], top: int
) -> dict[str, Numbers]:
    """The boxes of ranges and of blocks, as columns. A block has no name, and counts its ranges; the count of a range is 0."""
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
