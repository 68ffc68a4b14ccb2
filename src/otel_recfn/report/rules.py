"""What to look for in a recording: a rule for each thing that makes programs slow, in the words of who has to mend it.

A rule is given a recording and says what it found, or None. Shares are of ``Recording.whole_ns``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from otel_recfn.batches.call_paths import Amounts
from otel_recfn.batches.forward_links import NODES_PREFIX
from otel_recfn.batches.number_sets import Places
from otel_recfn.model.events import LEAST_WAIT_NS, EventKind
from otel_recfn.report.process import Finding
from otel_recfn.report.recording import Recording

SHOWN = 0.1
"""Of the time: who mends less notices nothing."""
SERIOUS = 0.25
"""Of the time: who mends it has a program that is a third faster."""
CALL_NS = 20_000
"""Calling an operator from Python takes 3 to 10 us, on a busy machine twice that: what is shorter computes next to nothing."""
LONGEST_CALL_NS = 50_000
"""Of the pause after an operator this much counts to calling the next one; a longer one is the program's own work."""
LOOP = 64
"""So many times one operator directly in one range is a loop over elements or parameters: models have a layer at a time."""
SYNCS_OF_LOOP = 4
"""A loop with one call in so many that asks for a value, or more, does so for each element."""
FEW_SYNCS = 32
"""A program that reads its loss now and then reads it less often."""
LARGE_BLOCK = 1 << 20
"""Bytes: memory allocators give blocks of this size back to the system, and each one is paged in anew."""

MOST_SAID = 300
"""Characters of a reason."""

LOADER = "enumerate(DataLoader)#"
COMPILATIONS = ("torch.compile: ", "_compile.compile_inner (dynamo_timed)")
_COMPILED_AGAIN = re.compile(r"Torch-Compiled Region: \d+/[1-9]\d*")
SYNCS = {"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero"}
COPIES = {"aten::to", "aten::_to_copy", "aten::copy_", "aten::contiguous", "aten::clone"}
MAKERS = ("aten::empty", "aten::zeros", "aten::ones", "aten::full", "aten::new_", "aten::cat", "aten::clone", "aten::resize_")
"""Operators that compute nothing, but make tensors."""


Rule = Callable[[Recording], Finding | None]


def waits_for_data(seen: Recording) -> Finding | None:
    """The loop stands still while its DataLoader makes a batch. The first batch is left out: with it workers start."""
    ranges = seen.ranges_of(seen.outermost(lambda name: name.startswith(LOADER)))
    ranges = ranges[np.argsort(seen.column("start_ns")[ranges])][1:]
    times = seen.ranges.durations[ranges]
    share = seen.share(times)
    if share < SHOWN:
        return None
    path = seen.main_path(ranges, times)
    in_workers = "MultiProcessing" in path[-1]
    made = "which waits for its workers" if in_workers else "which makes each batch in the loop itself"
    return Finding(
        rule="data",
        title="Waits for data",
        text=f"{share:.0%} of the time goes to the DataLoader, {made}: {len(ranges):,} batches, {duration(times.mean())} each.",
        share=share,
        next_step="Do less for a sample, or give the DataLoader more num_workers or a larger prefetch_factor."
        if in_workers
        else "Have other processes make batches ahead: DataLoader(num_workers=4, persistent_workers=True).",
        anchor=path,
        serious=share >= SERIOUS,
    )


def waits_for_cpu(seen: Recording) -> Finding | None:
    """A thread in a module call or step neither worked nor loaded data nor compiled: it waited for a core, the GIL or a lock.

    Serious only where that is half of the time: on a machine that others use every thread waits a little.
    """
    ranges, waited = _waiting(seen)
    share = seen.share(waited)
    if share < SERIOUS or waited.sum() < LEAST_WAIT_NS:
        return None
    path = seen.main_path(ranges, waited)
    return Finding(
        rule="cpu",
        title="Waits for a core, the GIL or a lock",
        text=f"{share:.0%} of the time ({duration(waited.sum())}) threads stood still, most of it in {path[-1]}: they neither "
        "worked nor loaded data.",
        share=share,
        next_step="Look for what holds them up: Python threads beside them hold the GIL, more threads than cores share these "
        "(OMP_NUM_THREADS), or the code sleeps, reads a file or waits for a lock; profile(python_calls=True) shows where.",
        anchor=path,
        serious=share >= 2 * SERIOUS,
        code=seen.code(ranges, waited),
    )


def _waiting(seen: Recording) -> tuple[Places, Amounts]:
    """The ranges whose CPU time is known, and what each waited itself."""
    cpu, durations = seen.column("cpu_time_ns"), seen.ranges.durations
    known = (cpu >= 0) & seen.synchronous
    timed = np.flatnonzero(known)
    waited = np.where(known, np.maximum(durations - cpu, 0), 0)
    own = waited.copy()
    elsewhere = seen.ranges_of(seen.outermost(lambda name: name.startswith((LOADER, *COMPILATIONS))))
    for ranges, amounts in ((timed, waited), (elsewhere, durations)):
        around = seen.nearest(ranges, known)
        np.subtract.at(own, around[around >= 0], amounts[ranges[around >= 0]])
    return timed, np.maximum(own[timed], 0)


def compiles(seen: Recording) -> Finding | None:
    """torch.compile compiles what it has compiled before, for other inputs; or for the first time, which is no fault."""
    ranges = seen.ranges_of(seen.outermost(lambda name: name.startswith(COMPILATIONS)))
    share = seen.share(seen.ranges.durations[ranges])
    if share < SHOWN:
        return None
    told = [json.loads(seen.batch.names[text] or "{}") for text in seen.column("attributes")[ranges].tolist()]
    reasons = [str(each.get("recfn.compile.reason", "")) for each in told]
    again = ranges[[bool(reason) for reason in reasons]]
    if not any(told):  # a trace of torch.profiler's, where compiled code that ran says how often it was compiled
        again = ranges[: sum(_COMPILED_AGAIN.fullmatch(name) is not None for name in {*seen.names})]
    is_fault = len(again) > 1 and seen.share(seen.ranges.durations[again]) >= SHOWN
    blamed = again if is_fault else ranges
    times = seen.ranges.durations[blamed]
    text = f"{share:.0%} of the time goes to torch.compile: {len(ranges)} compilations"
    text += f", {len(again)} of them of what was compiled before." if len(again) else "."
    return Finding(
        rule="compile",
        title="Compiles again and again" if is_fault else "Compiles",
        text=text + _most_said("Most often because: ", reasons) + _most_said("A graph break: ", _breaks(told)),
        share=share,
        next_step="Keep what the reason names the same in every call, or let it vary: torch.compile(dynamic=True), "
        "mark_dynamic(), a tensor in place of a number."
        if is_fault
        else "First calls cost this once: call the model before you measure it.",
        anchor=seen.main_path(blamed, times),
        serious=is_fault and seen.share(times) >= SERIOUS,
        code=seen.code(blamed, times),
    )


def _breaks(told: list[dict[str, Any]]) -> list[str]:
    return [reason for each in told for reason in each.get("recfn.compile.graph_breaks", ())]


def _most_said(introduction: str, reasons: list[str]) -> str:
    counts = Counter(reason.strip().partition("\n")[0] for reason in reasons if reason.strip())
    return "".join([f" {introduction}{reason[:MOST_SAID]}" for reason, _ in counts.most_common(1)])


def tiny_operators(seen: Recording) -> Finding | None:
    """A loop in Python calls operators on so little data that calls cost more than what is computed. Loops that ask for
    values are another rule's."""
    ranges = seen.ranges_of(seen.outermost(_is_operator) & ~seen.named(SYNCS.__contains__))
    ranges = ranges[seen.ranges.durations[ranges] < CALL_NS]
    around = seen.ranges.above[ranges]
    of_loop = _counts(around * len(seen.names) + seen.paths.of_row[ranges]) >= LOOP
    syncs = seen.ranges.above[seen.ranges_of(seen.outermost(SYNCS.__contains__))]
    asks = np.bincount(syncs + 1, minlength=len(seen.ranges.above) + 1)[around + 1] * SYNCS_OF_LOOP >= _counts(around)
    ranges = ranges[of_loop & ~asks]
    times = _with_calls(seen, ranges)
    share = seen.share(times)
    if share < SHOWN:
        return None
    path = seen.main_path(ranges, times)
    return Finding(
        rule="tiny",
        title="Many tiny operators",
        text=f"{share:.0%} of the time goes to {len(ranges):,} operators in loops that take {duration(times.mean())} each, "
        f"most of it to call them; most are {path[-1]}" + (f" in {path[-2]}." if len(path) > 1 else "."),
        share=share,
        next_step="Compute on whole tensors in place of loops over elements; in optimizers set fused=True or foreach=True; or "
        "torch.compile what is called.",
        anchor=path,
        serious=share >= SERIOUS,
        code=seen.code(ranges, times),
    )


def _counts(numbers: Places) -> Amounts:
    """How often each of them is there."""
    _, member, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    return np.asarray(counts[member])


def _is_operator(name: str) -> bool:
    return "::" in name and not name.startswith(NODES_PREFIX)


def _with_calls(seen: Recording, ranges: Places) -> Amounts:
    """What these operators take, with the calls that follow."""
    return np.asarray(seen.ranges.durations[ranges] + np.minimum(seen.pauses[ranges], LONGEST_CALL_NS))


def synchronises(seen: Recording) -> Finding | None:
    """Python asks for a value of a tensor: it has to wait until all that was launched before is computed."""
    ranges = seen.ranges_of(seen.outermost(SYNCS.__contains__))
    times = _with_calls(seen, ranges)
    share = seen.share(times)
    if share < SHOWN or len(ranges) < FEW_SYNCS:
        return None
    path = seen.main_path(ranges, times)
    return Finding(
        rule="sync",
        title="Asks tensors for their values",
        text=f"{share:.0%} of the time goes to {len(ranges):,} calls that hand a value to Python, most by {path[-1]}. On a GPU "
        "each waits until all that was launched before is done.",
        share=share,
        next_step="Keep values in tensors: torch.where() in place of if and of masks, sums in place of .item() in loops; read "
        "losses every hundredth step.",
        anchor=path,
        serious=share >= SERIOUS,
        code=seen.code(ranges, times),
    )


def copies(seen: Recording) -> Finding | None:
    """Tensors are copied: to another dtype, device or layout. Copies that take no longer than a call are tiny operators,
    and those inside of an operator are how it works."""
    ranges = seen.ranges_of(seen.outermost(_is_operator) & seen.named(COPIES.__contains__))
    ranges = ranges[seen.ranges.durations[ranges] >= CALL_NS]
    times = seen.ranges.durations[ranges]
    share = seen.share(times)
    if share < SHOWN:
        return None
    path = seen.main_path(ranges, times)
    return Finding(
        rule="copy",
        title="Copies and casts",
        text=f"{share:.0%} of the time goes to {len(ranges):,} copies of tensors to another dtype, device or layout, most of "
        f"it by {path[-1]}" + (f" in {path[-2]}." if len(path) > 1 else "."),
        share=share,
        next_step="Cast or move once, before the loop; keep tensors in one dtype and layout (channels_last for convolutions), "
        "and give operators what they want.",
        anchor=path,
        serious=share >= SERIOUS,
        code=seen.code(ranges, times),
    )


def churns(seen: Recording) -> Finding | None:
    """Large tensors are made and given back over and over. Known only where memory is recorded."""
    batch = seen.batch
    allocated = np.flatnonzero((batch.kind == EventKind.MEMORY) & (batch.nbytes >= LARGE_BLOCK))
    ranges = seen.ranges_of(seen.outermost(lambda name: name.startswith(MAKERS)))
    ranges = ranges[seen.hold(ranges, batch.parent[allocated])]
    times = seen.ranges.durations[ranges]
    share = seen.share(times)
    if share < SHOWN or len(ranges) < LOOP:
        return None
    path = seen.main_path(ranges, times)
    return Finding(
        rule="memory",
        title="Makes large tensors over and over",
        text=f"{share:.0%} of the time goes to {len(ranges):,} operators that only make large tensors, most of it to "
        f"{path[-1]}: {batch.nbytes[allocated].sum() / (1 << 30):,.1f} GiB were allocated in blocks of 1 MiB or more.",
        share=share,
        next_step="Make them once and write into them (out=, copy_(), index_copy_()); let a list or a cache grow in blocks.",
        anchor=path,
        serious=share >= SERIOUS,
        code=seen.code(ranges, times),
    )


RULES: tuple[Rule, ...] = (waits_for_data, waits_for_cpu, compiles, synchronises, copies, churns, tiny_operators)


def duration(ns: float) -> str:
    """In the unit that fits."""
    for unit, name in ((1e9, "s"), (1e6, "ms")):
        if ns >= unit:
            return f"{ns / unit:.3g} {name}"
    return f"{ns / 1000:.3g} us"
