"""A finding: what makes a program slow, in the words of the user who has to change it."""

from __future__ import annotations

from typing import NamedTuple

from otel_recfn.batches.call_paths import Amounts
from otel_recfn.batches.number_sets import Indices
from otel_recfn.report.kinds import BLOCK, MODULE, PYTHON
from otel_recfn.report.labels import shorten
from otel_recfn.report.python_lines import main_line
from otel_recfn.report.recording import Recording

MIN_SHARE = 0.1
"""The minimum share of the time for a finding: users would not notice that less was saved."""
SERIOUS_SHARE = 0.25
"""The minimum share of the time for a serious finding: a program that saves it is a third
faster."""
WAITING = "cpu"
"""The rule whose findings may be the fault of other programs."""
HANG = "hang"
"""The rule whose findings come first."""
GROWTH = "growth"
"""The rule whose findings take memory and no time."""
GPU_WAITS = "gpu"
GPU_START = "gpu_start"
CALLERS = (MODULE, BLOCK, PYTHON)
"""The kinds of ranges that users know as their own."""
GPU_RULES = (GPU_WAITS, GPU_START)
"""The rules whose findings are about the GPU, and say themselves how busy it was."""


class Finding(NamedTuple):
    """A thing to look at first."""

    title: str
    text: str
    """The evidence, in plain words."""
    share: float
    """The share of the wall time that it takes, 0 to 1."""
    next_step: str
    anchor: tuple[str, ...] = ()
    """The last names of the path that it is about, the outermost first: the page shows the
    widest frame with such a path.
    """
    serious: bool = False
    """Whether a change is worth the work."""
    code: str = ""
    """The line of Python that it comes from, ``file(line): function``; empty if none was
    recorded.
    """
    process: str = ""
    """The label of the process that has most of it."""
    rule: str = ""
    """The word for its kind: each rule has one."""
    is_waiting: bool = False
    """Whether it is about a thread that waits for the work of others, which is no trouble."""

    @property
    def headline(self) -> str:
        """The title, with the share of the time unless that is of no use."""
        if self.rule in (HANG, GROWTH):
            return self.title
        return f"{self.title}, {self.share:.0%} of the time"


def finding_about(
    recording: Recording,
    ranges: Indices,
    times: Amounts,
    *,
    rule: str,
    title: str,
    text: str,
    next_step: str,
    share: float | None = None,
    run_share: float | None = None,
    serious: bool | None = None,
) -> Finding | None:
    """The finding about these ranges, or None if they took too little time.

    Args:
        recording: the recording of one process.
        ranges: the ranges that take the time.
        times: the time that each of them takes.
        rule: the word for the finding's kind.
        title: its title.
        text: the evidence. ``{most}`` in it becomes the place of most of their time.
        next_step: the change to try.
        share: the share of the time that it takes; None: the share that the times have of the wall
            time.
        run_share: the share that counts; None: ``share`` or, without one, the share of the time in
            which the program ran.
        serious: whether a change is worth the work; None: it is for a large share.
    """
    if run_share is None:
        run_share = recording.run_share(ranges, times) if share is None else share
    if share is None:
        share = recording.share(ranges, times)
    if run_share < MIN_SHARE:
        return None
    if rule not in GPU_RULES:
        text += _busy_meanwhile(recording, ranges)
    main = recording.main_path(ranges, times)
    anchor = recording.names_in(main)
    on_main_path = recording.path[ranges] == main
    return Finding(
        title=title,
        text=text.replace("{most}", _place(recording, main)),
        share=share,
        next_step=next_step,
        anchor=anchor,
        serious=run_share >= SERIOUS_SHARE if serious is None else serious,
        code=shorten(main_line(recording, ranges[on_main_path], times[on_main_path])),
        rule=rule,
    )


def _place(recording: Recording, path: int) -> str:
    """The last name of a path and the one around it and, if that is an operator, the module, block
    or function that called it.
    """
    parents = recording.paths.parent
    names = [recording.names[path]]
    enclosing = int(parents[path])
    if enclosing >= 0:
        names.append(recording.names[enclosing])
    while enclosing >= 0 and recording.path_kind[enclosing] not in CALLERS:
        enclosing = int(parents[enclosing])
        if enclosing >= 0 and recording.path_kind[enclosing] in CALLERS:
            names.append(recording.names[enclosing])
    return " in ".join(map(shorten, names))


def busy_share(recording: Recording) -> float:
    """The share of the run, from its first begin to its last end, in which the GPU was busy."""
    return recording.device_use.busy[0].total_ns / recording.length_ns(0)


def _busy_meanwhile(recording: Recording, ranges: Indices) -> str:
    """The sentence that says how busy the GPU was while these ranges ran; empty without a GPU."""
    busy = recording.device_use.busy[0]
    if not busy.total_ns:
        return ""
    ns = busy.time_during(recording.start_ns[ranges], recording.end_ns[ranges]).sum()
    meanwhile = ns / max(recording.total_ns[ranges].sum(), 1)
    # A run is no shorter than the work of its GPU. So a change of what the CPU does can save at
    # most the time in which the GPU is idle.
    idle = 1 - busy_share(recording)
    return (
        f" Meanwhile the GPU was busy for {meanwhile:.0%} of the time. It was idle for {idle:.0%}"
        " of the run, and no more can be saved."
    )
