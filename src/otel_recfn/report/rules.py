"""The rules that find what makes a program slow, in the words of whoever has to mend it.

A rule is given the recording of one process, and returns its finding, or None. Shares are of ``Recording.whole_ns``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from otel_recfn.batches.call_paths import Amounts
from otel_recfn.batches.forward_links import NODES_PREFIX
from otel_recfn.batches.number_sets import Places, distinct
from otel_recfn.model.events import LEAST_WAIT_NS
from otel_recfn.report.nesting import Mask
from otel_recfn.report.recording import Recording, short

MOST = 5
"""The most findings: whoever is told more at once mends nothing."""
LEAST_SHARE = 0.1
"""The least share of the time for a finding: nobody would notice that less was saved."""
SERIOUS_SHARE = 0.25
"""The least share of the time of a serious finding: a program that saves it is a third faster."""
TINY_NS = 20_000
"""The time below which an operator computes next to nothing: calling one takes 3 to 10 us, on a busy machine twice that."""
LONGEST_CALL_NS = 50_000
"""The most of the pause after an operator that counts as calling the next one: the rest is the program's own work."""
CALLS_OF_LOOP = 64
"""The least calls of one operator directly in one range that are a loop over elements or parameters: layers are fewer."""
CALLS_PER_SYNC = 4
"""The most calls of a loop to each that asks for a value, if the loop asks for one of each element."""
LEAST_SYNCS = 32
"""The least calls that ask for values: a program that reads its loss now and then has fewer."""
LONGEST_REASON = 300
"""The most characters that are shown of a reason."""

WAITING = "cpu"
"""The rule whose findings may be the fault of other programs."""
LOADER = "enumerate(DataLoader)#"
COMPILATIONS = ("torch.compile: ", "_compile.compile_inner (dynamo_timed)")
_COMPILED_AGAIN = re.compile(r"Torch-Compiled Region: \d+/[1-9]\d*")
SYNCS = {"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero"}
COPIES = {"aten::to", "aten::_to_copy", "aten::copy_", "aten::contiguous", "aten::clone"}
MAKERS = (
    "aten::empty",
    "aten::zeros",
    "aten::ones",
    "aten::full",
    "aten::new_",
    "aten::cat",
    "aten::clone",
    "aten::resize_",
)
"""Operators that compute nothing, but make tensors."""


class Finding(NamedTuple):
    """A thing to look at first."""

    title: str
    text: str
    """The evidence, in plain words."""
    share: float
    """The share of the recorded time that it takes, 0 to 1."""
    next_step: str
    anchor: tuple[str, ...] = ()
    """The last names of the path that it is about, the outermost first: the page shows the widest frame with such a path."""
    serious: bool = False
    """Whether mending it is worth the work."""
    code: str = ""
    """The line of Python that it comes from, ``file(line): function``; empty where none is on record."""
    process: str = ""
    """The label of the process that has most of it."""
    rule: str = ""
    """The word for its kind: each rule has one."""


Rule = Callable[[Recording], Finding | None]


def findings(recordings: Sequence[Recording]) -> list[Finding]:
    """The worst finding of each rule in these processes: at most five, the most serious first. One that may be the fault of
    other programs comes last."""
    found = [
        worst for rule in RULES if (worst := _worst_of_processes(rule, recordings)) is not None
    ]
    return sorted(
        found,
        key=lambda each: (not each.serious, each.rule == WAITING and not each.serious, -each.share),
    )[:MOST]


def _worst_of_processes(rule: Rule, recordings: Sequence[Recording]) -> Finding | None:
    """The finding of a rule that has the greatest share; of several processes, it says in how many there is one."""
    found = [
        each._replace(process=seen.processes[0].label)
        for seen in recordings
        if (each := rule(seen)) is not None
    ]
    worst = max(found, key=lambda each: each.share, default=None)
    if worst is None or len(recordings) == 1:
        return worst
    return worst._replace(
        text=f"{worst.text} Found in {len(found)} of {len(recordings)} processes; this is {worst.process}."
    )


def _finding(seen: Recording, ranges: Places, times: Amounts, **told: Any) -> Finding | None:
    """The finding about these ranges, or None if they took too little time. ``{most}`` in its text becomes their main path."""
    share = seen.share(times)
    if share < LEAST_SHARE:
        return None
    main = seen.main_path(ranges, times)
    anchor, of_main = seen.names_in(main), seen.path[ranges] == main
    told["text"] = told["text"].replace("{most}", " in ".join(map(short, reversed(anchor[-2:]))))
    code = short(seen.main_line(ranges[of_main], times[of_main]))
    shown = {"share": share, "anchor": anchor, "serious": share >= SERIOUS_SHARE, "code": code}
    return Finding(**{**shown, **told})


def waits_for_data(seen: Recording) -> Finding | None:
    """The finding that the loop waits for its DataLoader. The first batch is left out, as workers start with it."""
    ranges = seen.outermost(lambda name: name.startswith(LOADER))
    ranges = ranges[np.argsort(seen.start_ns[ranges])][1:]
    if not len(ranges):
        return None
    times = seen.total_ns[ranges]
    in_workers = "MultiProcessing" in seen.names[seen.main_path(ranges, times)]
    made = "waits for its workers" if in_workers else "makes each batch in the loop itself"
    return _finding(
        seen,
        ranges,
        times,
        rule="data",
        title="Waits for data",
        text=f"The DataLoader {made}: {len(ranges):,} batches, {duration(times.mean())} each.",
        next_step="Do less for a sample, or give the DataLoader persistent_workers=True or more num_workers."
        if in_workers
        else "Have other processes make batches ahead: DataLoader(num_workers=4, persistent_workers=True).",
    )


def stands_still(seen: Recording) -> Finding | None:
    """The finding that a thread in a module call or step neither worked nor loaded data nor compiled. Another program may have
    had its core, which a trace can't tell: it is serious only as far as other threads of this program worked meanwhile."""
    ranges, waited = _own_waits(seen)
    if seen.share(waited) < SERIOUS_SHARE or waited.sum() < LEAST_WAIT_NS:
        return None
    of_ours = np.minimum(waited, _worked_beside(seen, ranges))
    is_own_fault = seen.share(of_ours) >= SERIOUS_SHARE
    return _finding(
        seen,
        ranges,
        of_ours if is_own_fault else waited,
        rule=WAITING,
        title="Threads hold each other up" if is_own_fault else "Threads stand still",
        text=f"They neither worked nor loaded data for {duration(waited.sum())}, most of it in {{most}}. "
        + (
            f"For {duration(of_ours.sum())} of it, other threads of this program worked."
            if is_own_fault
            else "Nothing on record held them up: they slept, or waited for a lock, a file or the GIL; or other programs had "
            "the cores."
        ),
        next_step="Have fewer threads of Python, as one alone has the GIL, and fewer threads than cores (OMP_NUM_THREADS)."
        if is_own_fault
        else "Record it again on a machine without other work. If it stays, profile(python_calls=True) shows what waits.",
        serious=is_own_fault,
    )


def _own_waits(seen: Recording) -> tuple[Places, Amounts]:
    """The ranges whose CPU time is known, outside of loading and compiling, with the time that each waited itself."""
    known = _has_cpu_time(seen)
    waited = np.where(known, np.maximum(seen.total_ns - seen.cpu_ns, 0), 0)
    elsewhere = np.zeros(len(seen), np.bool_)
    elsewhere[seen.outermost(lambda name: name.startswith((LOADER, *COMPILATIONS)))] = True
    counted = known & (seen.nearest(np.arange(len(seen)), elsewhere) < 0)
    own, taken = waited.copy(), np.where(known, waited, seen.total_ns)
    inside = np.flatnonzero(counted | elsewhere)
    around = seen.nearest(seen.above_in_thread[inside], counted)
    np.subtract.at(own, around[around >= 0], taken[inside[around >= 0]])
    timed = np.flatnonzero(counted)
    return timed, np.maximum(own[timed], 0)


def _has_cpu_time(seen: Recording) -> Mask:
    return np.asarray((seen.cpu_ns >= 0) & seen.takes_thread_time)


def _worked_beside(seen: Recording, ranges: Places) -> Amounts:
    """The CPU time of other threads while each of these ranges ran, as if they worked evenly from begin to end of outermost
    ranges whose CPU time is known."""
    outermost = ranges[seen.nearest(seen.above_in_thread[ranges], _has_cpu_time(seen)) < 0]
    outermost = outermost[np.argsort(seen.start_ns[outermost], kind="stable")]
    first_ns = seen.start_ns[ranges].min(initial=0)  # floats of Unix times would be inexact
    worked = np.zeros(len(ranges))
    for lane in distinct(seen.lane[outermost]).tolist():
        of_lane = outermost[seen.lane[outermost] == lane]
        moments = (
            np.stack([seen.start_ns[of_lane], seen.end_ns[of_lane]], axis=1).ravel() - first_ns
        )
        done = np.cumsum(np.stack([np.zeros(len(of_lane)), seen.cpu_ns[of_lane]], axis=1).ravel())
        began, ended = [
            np.interp(times[ranges] - first_ns, moments, done)
            for times in (seen.start_ns, seen.end_ns)
        ]
        worked += np.where(seen.lane[ranges] != lane, ended - began, 0)
    return worked.astype(np.int64)


def compiles(seen: Recording) -> Finding | None:
    """The finding that torch.compile compiles again, for other inputs; or for the first time, which is no fault."""
    ranges = seen.outermost(lambda name: name.startswith(COMPILATIONS))
    told = [
        json.loads(seen.text_in_column("attributes", place) or "{}") for place in ranges.tolist()
    ]
    reasons = [str(each.get("recfn.compile.reason", "")) for each in told]
    again = ranges[[bool(reason) for reason in reasons]]
    if not any(told):  # in torch.profiler's traces only the names of compiled code that ran say so
        again = ranges[: sum(_COMPILED_AGAIN.fullmatch(name) is not None for name in {*seen.names})]
    share_of_faults = seen.share(seen.total_ns[again])
    is_fault = len(again) > 1 and share_of_faults >= LEAST_SHARE
    blamed = again if is_fault else ranges
    text = f"torch.compile compiled {len(ranges)} times"
    text += f", {len(again)} of them what it had compiled before." if len(again) else "."
    return _finding(
        seen,
        blamed,
        seen.total_ns[blamed],
        rule="compile",
        title="Compiles again and again" if is_fault else "Compiles",
        text=text
        + _most_frequent("Most often because: ", reasons)
        + _most_frequent("A graph break: ", _graph_breaks(told)),
        next_step="Keep what the reason names the same in every call, or let it vary: torch.compile(dynamic=True), "
        "mark_dynamic(), a tensor in place of a number."
        if is_fault
        else "First calls cost this once: call the model before you measure it.",
        serious=is_fault and share_of_faults >= SERIOUS_SHARE,
    )


def _graph_breaks(told: list[dict[str, Any]]) -> list[str]:
    breaks = [each.get("recfn.compile.graph_breaks") for each in told]
    return [str(reason) for each in breaks if isinstance(each, list) for reason in each]


def _most_frequent(introduction: str, reasons: list[str]) -> str:
    counts = Counter(reason.strip().partition("\n")[0] for reason in reasons if reason.strip())
    return "".join(
        [f" {introduction}{reason[:LONGEST_REASON]}" for reason, _ in counts.most_common(1)]
    )


def tiny_operators(seen: Recording) -> Finding | None:
    """The finding that a loop calls operators on so little data that calls take longer than computing. Loops that ask for
    values are another rule's."""
    ranges = seen.outermost(_is_operator)
    ranges = ranges[(~seen.has_name(SYNCS.__contains__) & (seen.total_ns < TINY_NS))[ranges]]
    around = seen.above[ranges]
    loop = np.where(
        around >= 0, around, -1 - seen.lane[ranges]
    )  # the outermost operators of a thread count as one loop
    of_loop = _times_found(loop * len(seen.names) + seen.path[ranges]) >= CALLS_OF_LOOP
    syncs = seen.above[seen.outermost(SYNCS.__contains__)]
    asks = np.bincount(syncs + 1, minlength=len(seen) + 1)[
        around + 1
    ] * CALLS_PER_SYNC >= _times_found(around)
    ranges = ranges[of_loop & ~asks]
    times = _times_with_calls(seen, ranges)
    return _finding(
        seen,
        ranges,
        times,
        rule="tiny",
        title="Many tiny operators",
        text=f"{len(ranges):,} operators in loops take {duration(times.sum() / max(len(ranges), 1))} each, most of it to call "
        "them; most are {most}.",
        next_step="Compute on whole tensors in place of loops over elements; in optimizers set fused=True or foreach=True; or "
        "torch.compile what is called.",
    )


def _times_found(numbers: Places) -> Amounts:
    """The number of times that each of these numbers is among them."""
    _, member, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    return np.asarray(counts[member])


def _is_operator(name: str) -> bool:
    return "::" in name and not name.startswith(NODES_PREFIX)


def _times_with_calls(seen: Recording, ranges: Places) -> Amounts:
    """The time of each of these operators, with that of calling the next one."""
    return np.asarray(seen.total_ns[ranges] + np.minimum(seen.pauses[ranges], LONGEST_CALL_NS))


def synchronises(seen: Recording) -> Finding | None:
    """The finding that Python asks for values of tensors: each time it waits until all that was launched before is computed."""
    ranges = seen.outermost(SYNCS.__contains__)
    if len(ranges) < LEAST_SYNCS:
        return None
    return _finding(
        seen,
        ranges,
        _times_with_calls(seen, ranges),
        rule="sync",
        title="Asks tensors for their values",
        text=f"{len(ranges):,} calls hand a value to Python; most of their time is in {{most}}. On a GPU each waits until "
        "all that was launched before is done.",
        next_step="Keep values in tensors: torch.where() in place of if and of masks, sums in place of .item() in loops; read "
        "losses every hundredth step.",
    )


def copies(seen: Recording) -> Finding | None:
    """The finding that tensors are copied to another dtype, device or layout. Copies that take no longer than a call are tiny
    operators, and those inside of an operator are how it works."""
    ranges = seen.outermost(_is_operator)
    ranges = ranges[(seen.has_name(COPIES.__contains__) & (seen.total_ns >= TINY_NS))[ranges]]
    return _finding(
        seen,
        ranges,
        seen.total_ns[ranges],
        rule="copy",
        title="Copies and casts",
        text=f"{len(ranges):,} copies of tensors to another dtype, device or layout; most of their time is in {{most}}.",
        next_step="Cast or move once, before the loop; keep tensors in one dtype and layout (channels_last for convolutions), "
        "and give operators what they want.",
    )


def churns(seen: Recording) -> Finding | None:
    """The finding that large tensors are made and given back over and over, which is known only where memory is recorded."""
    is_maker = np.zeros(len(seen), np.bool_)
    is_maker[seen.outermost(lambda name: name.startswith(MAKERS))] = True
    ranges = seen.nearest(np.flatnonzero(seen.large), is_maker)
    ranges = distinct(ranges[ranges >= 0])
    if len(ranges) < CALLS_OF_LOOP:
        return None
    return _finding(
        seen,
        ranges,
        seen.total_ns[ranges],
        rule="memory",
        title="Makes large tensors over and over",
        text=f"{len(ranges):,} operators only make large tensors, most of the time in {{most}}: "
        f"{seen.large.sum() / (1 << 30):,.1f} GiB were allocated in blocks of 1 MiB or more.",
        next_step="Make them once and write into them (out=, copy_(), index_copy_()); let a list or a cache grow in blocks.",
    )


RULES: tuple[Rule, ...] = (
    waits_for_data,
    stands_still,
    compiles,
    synchronises,
    copies,
    churns,
    tiny_operators,
)


def duration(ns: float) -> str:
    """A time as text, in the unit that fits."""
    for unit, name in ((1e9, "s"), (1e6, "ms")):
        if ns >= unit:
            return f"{ns / unit:.3g} {name}"
    return f"{ns / 1000:.3g} us"
