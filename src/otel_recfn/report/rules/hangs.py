"""The rule about ranges that were still open when the recording ended.

    thread  ─[ train ──────────────────────────────────────
              ─[ mm ]──[ mm ]──[ all_reduce ───────────────   the innermost open range
                              │        └── silent ────────┤

Most ranges that are open then are no hang: the program ran on, and the recording ended inside
them. A hang is silent: for long nothing has begun or ended in the innermost open range.
"""

from __future__ import annotations

import numpy as np

from otel_recfn.batches.call_paths import Amounts
from otel_recfn.batches.number_sets import Indices, nearest
from otel_recfn.report.finding import HANG, Finding
from otel_recfn.report.kinds import GPU
from otel_recfn.report.labels import duration, shorten
from otel_recfn.report.nesting import Mask
from otel_recfn.report.python_lines import main_line
from otel_recfn.report.recording import Recording

MIN_SILENT_NS = 1_000_000_000
"""The minimum silence of a hang: a thread that works begins or ends a range many times a second, so
that a block which ends at any moment ends inside a shorter one.
"""
MIN_TIMES_LONGER = 2
"""The minimum ratio of the silence to the longest range of that name that has ended: compilations,
for example, take seconds without hanging.
"""
MAX_OTHERS = 3
"""The maximum number of further hangs that the text names."""
NEXT_STEP = (
    "Find out what it waits for: a rank that isn't in the same collective, a lock, a queue, or a"
    " disk. While it hangs again, `py-spy dump --pid` shows the Python stacks of all threads."
)


def hangs(recording: Recording) -> Finding | None:
    """The finding that threads hang. It is about the longest silence."""
    innermost = _innermost_open(recording)
    silent_ns = _silences(recording, innermost)
    is_hang = (silent_ns >= MIN_SILENT_NS) & (
        silent_ns >= MIN_TIMES_LONGER * _longest_ended(recording)[recording.label[innermost]]
    )
    ranges = innermost[is_hang]
    if not len(ranges):
        return None
    order = np.argsort(-silent_ns[is_hang], kind="stable")
    longest_ns = int(silent_ns[is_hang][order[0]])
    longest, *others = ranges[order].tolist()
    names = recording.names_in(int(recording.path[longest]))
    text = f"Nothing has begun or ended in it for {duration(longest_ns)}."
    text += f" Open in {_thread(recording, longest)}: {' > '.join(map(shorten, names))}."
    also = [_opening(recording, position) for position in others[:MAX_OTHERS]]
    text += f" So {'were' if len(also) > 1 else 'was'} {', '.join(also)}." if also else ""
    if len(others) > MAX_OTHERS:
        text += f" {len(others) - MAX_OTHERS:,} more hang."
    open_for = duration(float(recording.total_ns[longest]))
    return Finding(
        title=f"`{shorten(names[-1])}` was open for {open_for} when the recording ended",
        text=text,
        share=min(longest_ns / recording.whole_ns, 1.0),
        next_step=NEXT_STEP,
        anchor=names,
        serious=True,
        code=shorten(main_line(recording, np.array([longest]), np.array([longest_ns]))),
        rule=HANG,
    )


def _innermost_open(recording: Recording) -> Indices:
    """The open ranges without an open one in them, whatever thread that is in.

    The thread that ended a block ran on: the block was inside its open ranges.
    """
    is_open = recording.is_open & (recording.kind != GPU)
    is_around = np.zeros(len(recording), np.bool_)
    around = _nearest_outside(recording, is_open)[is_open]
    is_around[around[around >= 0]] = True
    return np.flatnonzero(is_open & ~is_around & ~_in_ending_thread(recording))


def _in_ending_thread(recording: Recording) -> Mask:
    """Whether each range is in the thread that ended its block."""
    ended = np.zeros(len(recording.lanes), np.bool_)
    ended_ids = [
        process.block.end_thread if process.block else 0 for process in recording.processes
    ]
    tracks = [track for process in recording.processes for track in process.batch.tracks]
    for lane, (track, (process, _)) in enumerate(zip(tracks, recording.lanes, strict=True)):
        ended[lane] = ended_ids[process] != 0 and track.native_id == ended_ids[process]
    return ended[recording.lane]


def _nearest_outside(recording: Recording, mask: Mask) -> Indices:
    """The nearest range in the mask around each range, also in other threads; -1 if there is
    none.
    """
    if not len(recording):
        return recording.parent
    return np.where(recording.parent >= 0, nearest(recording.parent, mask)[recording.parent], -1)


def _silences(recording: Recording, innermost: Indices) -> Amounts:
    """The time since the last range in each of these open ranges ended, or since it began."""
    is_wanted = np.zeros(len(recording), np.bool_)
    is_wanted[innermost] = True
    last_ns = recording.start_ns.copy()
    around = _nearest_outside(recording, is_wanted)
    inside = np.flatnonzero(around >= 0)
    np.maximum.at(last_ns, around[inside], recording.end_ns[inside])
    return np.asarray((recording.end_ns - last_ns)[innermost])


def _longest_ended(recording: Recording) -> Amounts:
    """The longest range of each label that has ended; 0 if none has."""
    longest = np.zeros(int(recording.label.max(initial=-1)) + 1, np.int64)
    ended = ~recording.is_open
    np.maximum.at(longest, recording.label[ended], recording.total_ns[ended])
    return longest


def _thread(recording: Recording, position: int) -> str:
    return recording.lanes[int(recording.lane[position])][1]


def _opening(recording: Recording, position: int) -> str:
    name = shorten(recording.names[int(recording.path[position])])
    open_for = duration(float(recording.total_ns[position]))
    return f"`{name}` in {_thread(recording, position)} ({open_for})"
