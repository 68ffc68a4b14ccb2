"""The time line: a lane for each thread, the longest ranges one by one, and the others packed into
blocks that say how many.

In a lane, a range stands below the one that it lies in. Ranges that overlap their neighbours, and
the program's spans, stand below all others. The memory in use, where it was recorded, stands above
all lanes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from otel_recfn.batches.number_sets import distinct, is_in, sums_upwards
from otel_recfn.report.columns import DisplayedSpans
from otel_recfn.report.kinds import BLOCK, GPU
from otel_recfn.report.memory_use import memory_use
from otel_recfn.report.nesting import Mask, Numbers
from otel_recfn.report.recording import Recording

MAX_LANES = 64
"""The maximum number of threads that are shown: users don't scroll through more."""
MAX_DEPTH = 48
MAX_OVERLAPPING = 6
BINS = 1500
"""The parts of the time line, about a pixel each: ranges that begin in different parts are
packed into different blocks.
"""


def timeline(recording: Recording, limit: int) -> dict[str, Any]:
    """The boxes as columns, lane by lane and row by row, each row from left to right.

    A start is the distance from the one before, which takes fewer digits.

    Args:
        recording: the recording.
        limit: the maximum number of ranges that are shown one by one; there may be about as many
            blocks, and as many spans.
    """
    spans = recording.spans
    used = distinct(np.append(recording.lane, spans.lane))
    lanes = _displayed_lanes(recording, used)
    begin_ns = recording.begin_ns
    end_ns = int(max(recording.end_ns.max(), spans.end_ns.max(initial=0)))
    boxes = _in_rows(_all_boxes(recording, lanes, limit), lanes)
    boxes["start"] = np.diff(boxes["start"] - begin_ns, prepend=0)
    return {
        "lanes": [
            {"process": recording.lanes[lane][0], "thread": recording.lanes[lane][1]}
            for lane in lanes.tolist()
        ],
        "processes": [process.label for process in recording.processes],
        "whole": end_ns - begin_ns,
        "left_out": len(used) - len(lanes),
        "memory": _memory_tracks(recording, begin_ns, end_ns, limit),
        **{name: column.tolist() for name, column in boxes.items()},
    }


def _memory_tracks(
    recording: Recording, begin_ns: int, end_ns: int, limit: int
) -> list[dict[str, Any]]:
    """The memory in use of each process where it was recorded, from the lowest on: for each part of
    the time line with a change its first time, as a distance from the begin, and its most bytes.
    There are at most ``limit`` parts in all.
    """
    if not recording.allocated.any():
        return []
    tracks = []
    parts = max(1, min(BINS, limit) // len(recording.processes))
    for process in range(len(recording.processes)):
        use = memory_use(recording, process)
        if not len(use.nbytes):
            continue
        in_use = use.in_use - min(int(use.in_use.min()), 0)
        time = np.clip(use.time_ns - begin_ns, 0, end_ns - begin_ns)
        part = time * parts // max(end_ns - begin_ns + 1, 1)
        first = np.flatnonzero(np.diff(part, prepend=-1))
        most = np.maximum.reduceat(in_use, first)
        tracks.append({"process": process, "at": time[first].tolist(), "bytes": most.tolist()})
    return tracks


def _displayed_lanes(recording: Recording, used: Numbers) -> Numbers:
    """The busiest of the lanes in use, in the order of the time line."""
    busy = np.zeros(len(recording.lanes), np.int64)
    np.add.at(busy, recording.lane, np.maximum(recording.self_ns, 0))
    busiest = used[np.argsort(-busy[used], kind="stable")][:MAX_LANES]
    return _lanes_in_order(recording, busiest)


def _all_boxes(recording: Recording, lanes: Numbers, limit: int) -> dict[str, Numbers]:
    """The boxes in these lanes, of ranges, of blocks and of spans, in no order."""
    depth = _depths(recording)
    fits = is_in(recording.lane, lanes)
    selected = _drawn_one_by_one(
        recording, np.flatnonzero(fits & (depth < MAX_DEPTH)), depth, limit
    )
    packed = _packed_blocks(recording, selected, fits, depth)
    spans = _longest_spans(recording.spans, lanes, limit)
    depth, span_depth = _with_overlapping_below(recording, selected, depth, spans)
    return _boxes(
        recording, selected, depth, packed, _span_boxes(recording.spans, spans, span_depth)
    )


def _longest_spans(spans: DisplayedSpans, lanes: Numbers, limit: int) -> Numbers:
    in_lanes = np.flatnonzero(is_in(spans.lane, lanes))
    length = spans.end_ns[in_lanes] - spans.start_ns[in_lanes]
    return in_lanes[np.argsort(-length, kind="stable")][:limit]


def _in_rows(boxes: dict[str, Numbers], lanes: Numbers) -> dict[str, Numbers]:
    """The boxes lane by lane and row by row, with the position of each one's lane."""
    position = {lane: number for number, lane in enumerate(lanes.tolist())}
    boxes["lane"] = np.array([position[lane] for lane in boxes["lane"].tolist()], np.int64)
    order = np.lexsort((boxes["start"], boxes["depth"], boxes["lane"]))
    return {name: column[order] for name, column in boxes.items()}


def _lanes_in_order(recording: Recording, lanes: Numbers) -> Numbers:
    """The lanes, given the busiest first, by process: lanes with steps come first, those of GPUs
    last.
    """
    with_steps, gpu_lanes = (np.zeros(len(recording.lanes), np.bool_) for _ in range(2))
    with_steps[recording.lane[recording.is_step]] = True
    gpu_lanes[recording.lane[recording.kind == GPU]] = True
    process = np.array([number for number, _ in recording.lanes], np.int64)
    return lanes[np.lexsort((~with_steps[lanes], gpu_lanes[lanes], process[lanes]))]


def _depths(recording: Recording) -> Numbers:
    """The number of ranges around each in its lane, without those that overlap others."""
    counts = np.where(recording.overlaps, 0, 1)
    return sums_upwards(recording.parent_in_thread, counts) - counts


def _drawn_one_by_one(
    recording: Recording, candidates: Numbers, depth: Numbers, limit: int
) -> Mask:
    """Whether each range is shown one by one: steps are, and the longest others."""
    selected = np.zeros(len(recording), np.bool_)
    length = np.where(recording.is_step, np.iinfo(np.int64).max, recording.total_ns)
    selected[candidates[np.lexsort((depth[candidates], -length[candidates]))][:limit]] = True
    return selected


def _packed_blocks(
    recording: Recording, selected: Mask, fits: Mask, depth: Numbers
) -> dict[str, Numbers]:
    """The blocks, as columns: ranges that are not drawn one by one, packed with their neighbours in
    the same range, and all inside them.

        ─[ aten::mm ]─[ ]─[ ]─[ ]─[ ]──[ aten::mm ]──
                      └── a block ──┘
    """
    enclosing = recording.parent_in_thread
    outermost = recording.nearest(
        np.arange(len(recording)), (enclosing < 0) | selected | selected[enclosing]
    )
    counts = np.bincount(outermost[~selected & fits], minlength=len(selected))
    displayed = np.flatnonzero(selected | (counts > 0))
    displayed = displayed[
        np.lexsort((recording.start_ns[displayed], depth[displayed], recording.lane[displayed]))
    ]
    block = _block_numbers(recording, displayed, selected, depth)
    members = displayed[~selected[displayed]]
    _, first, block = np.unique(block, return_index=True, return_inverse=True)
    end, count, busy = (np.zeros(len(first), np.int64) for _ in range(3))
    np.maximum.at(end, block, recording.end_ns[members])
    np.add.at(count, block, counts[members])
    np.add.at(busy, block, recording.total_ns[members])
    row = members[first]
    return {
        "lane": recording.lane[row],
        "depth": depth[row],
        "start": recording.start_ns[row],
        "end": end,
        "count": count,
        "busy": busy,
    }


def _block_numbers(
    recording: Recording, displayed: Numbers, selected: Mask, depth: Numbers
) -> Numbers:
    """The number of the block of each displayed range that isn't drawn one by one.

    A block ends before a range that is drawn, at the end of a range around it, and where the next
    part of the time line begins.
    """
    part = recording.start_ns // max(
        1, int(recording.end_ns.max() - recording.start_ns.min()) // BINS
    )
    changes = [
        np.diff(column[displayed]) != 0
        for column in (recording.lane, depth, recording.parent, selected, part)
    ]
    numbers = np.append(0, np.cumsum(np.any(changes, axis=0)))
    return np.asarray(numbers[~selected[displayed]])


def _with_overlapping_below(
    recording: Recording, selected: Mask, depth: Numbers, spans: Numbers
) -> tuple[Numbers, Numbers]:
    """The depths, changed so that kept ranges that overlap others stand below all else in their
    lane, beside each other; and the depths of these spans, which stand there, too.
    """
    depth = depth.copy()
    overlapping = np.flatnonzero(selected & recording.overlaps)
    lane = np.append(recording.lane[overlapping], recording.spans.lane[spans])
    start = np.append(recording.start_ns[overlapping], recording.spans.start_ns[spans])
    end = np.append(recording.end_ns[overlapping], recording.spans.end_ns[spans])
    ends: dict[tuple[int, int], int] = {}
    deepest = np.zeros(len(recording.lanes), np.int64)
    np.maximum.at(deepest, recording.lane[selected], depth[selected] + 1)
    below = np.zeros(len(lane), np.int64)
    for position in np.lexsort((-end, start)).tolist():
        own = int(lane[position])
        free = (
            slot for slot in range(MAX_OVERLAPPING) if ends.get((own, slot), 0) <= start[position]
        )
        slot = next(free, MAX_OVERLAPPING - 1)
        ends[own, slot] = int(end[position])
        below[position] = deepest[own] + slot
    depth[overlapping] = below[: len(overlapping)]
    return depth, below[len(overlapping) :]


def _span_boxes(spans: DisplayedSpans, displayed: Numbers, depth: Numbers) -> dict[str, Numbers]:
    """The boxes of the program's spans, as columns: they take no time of their own, and hold no
    block of ranges.
    """
    none = np.full(len(displayed), -1, np.int64)
    length = spans.end_ns[displayed] - spans.start_ns[displayed]
    return {
        "lane": spans.lane[displayed],
        "depth": depth,
        "start": spans.start_ns[displayed],
        "length": length,
        "name": spans.label[displayed],
        "kind": np.full(len(displayed), BLOCK, np.int64),
        "count": np.zeros(len(displayed), np.int64),
        "busy": np.zeros(len(displayed), np.int64),
        "cpu": none,
        "step": none,
    }


def _boxes(
    recording: Recording,
    selected: Mask,
    depth: Numbers,
    packed: dict[str, Numbers],
    spans: dict[str, Numbers],
) -> dict[str, Numbers]:
    """The boxes of ranges, of blocks and of spans, as columns.

    A block has no name, and counts its ranges; the count of a range is 0.
    """
    blocks = len(packed["start"])
    each: dict[str, tuple[Numbers, Numbers]] = {
        "lane": (recording.lane[selected], packed["lane"]),
        "depth": (depth[selected], packed["depth"]),
        "start": (recording.start_ns[selected], packed["start"]),
        "length": (recording.total_ns[selected], packed["end"] - packed["start"]),
        "name": (recording.label[selected], np.full(blocks, -1, np.int64)),
        "kind": (recording.kind[selected], np.full(blocks, -1, np.int64)),
        "count": (np.zeros(int(selected.sum()), np.int64), packed["count"]),
        "busy": (recording.self_ns[selected], packed["busy"]),
        "cpu": (recording.cpu_ns[selected], np.full(blocks, -1, np.int64)),
        "step": (recording.step[selected], np.full(blocks, -1, np.int64)),
    }
    return {name: np.concatenate([*pair, spans[name]]) for name, pair in each.items()}
