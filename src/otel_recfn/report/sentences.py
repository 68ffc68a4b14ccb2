"""The sentences that say what took the time, and what GPUs did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from otel_recfn.report.activities import WORK, Activity
from otel_recfn.report.device_use import busy_time
from otel_recfn.report.kinds import FIRST_USE, WAITING
from otel_recfn.report.labels import duration, short
from otel_recfn.report.recording import Recording

UNRECORDED = "what isn't recorded (as Python between operators)"
UNRECORDED_OR_WAITING = (
    "what isn't recorded (as Python between operators, or waiting: this trace has no CPU time)"
)
MAX_WORK_KINDS = 5
MIN_SHARE = 0.01
"""The minimum share of the time that has a sentence."""


def what_took_the_time(seen: Recording) -> list[str]:
    """The sentences that say how much of the time each kind of work took, at most five, and which
    operation most of that; and how much the rest. Their percentages add up to 100, as no moment
    counts twice."""
    inside = _time_by_work(seen)
    times = Counter({work: parts.total() for work, parts in inside.items()})
    min_ns = MIN_SHARE * seen.whole_ns
    largest = [(work, ns) for work, ns in times.most_common(MAX_WORK_KINDS) if ns >= min_ns]
    other_ns = seen.whole_ns - sum(ns for _, ns in largest)
    percentages = _percentages([ns for _, ns in largest] + [other_ns])
    sentences = [
        f"{work} took {percentage}% of the time, {duration(ns)}{_main_operation(inside[work], ns)}."
        for (work, ns), percentage in zip(largest, percentages, strict=False)
    ]
    if other_ns >= 1:
        parts = _other_parts(seen, times, largest)
        sentences.append(
            f"The rest took {percentages[-1]}% of the time, {duration(other_ns)}: {parts}."
        )
    return sentences


def what_the_gpu_did(seen: Recording) -> list[str]:
    """The sentences, one for each process with a GPU, that say how much of the time that was busy,
    and with what.
    """
    sentences = []
    for use in device_rows(seen):
        length_us = use["length_us"]
        parts = [
            f"{part} {use[field] / length_us:.0%}"
            for part, field in (("kernels", "kernels_us"), ("copies", "copies_us"))
            if use[field] >= MIN_SHARE * length_us
        ]
        if use["collectives_us"] >= MIN_SHARE * length_us:
            alone = f"{use['collectives_alone_us'] / length_us:.0%}"
            parts.append(
                f"collectives {use['collectives_us'] / length_us:.0%}, {alone} while nothing"
                " else ran"
            )
        whose = f"{use['process']}: the" if len(seen.processes) > 1 else "The"
        busy = use["busy_us"] / length_us
        opening = (
            f"{whose} GPU was busy for {busy:.0%} of {duration(1000 * length_us)}, idle for"
            f" {1 - busy:.0%}: "
        )
        sentences.append(f"{opening}{', '.join(parts)}.")
    return sentences


def device_rows(seen: Recording) -> list[dict[str, Any]]:
    """The times of each process' GPU in microseconds, from the first begin to the last end of all
    that was recorded in the process; kinds of work may overlap.
    """
    rows = []
    for process, busy in enumerate(seen.device_use.busy):
        if not busy.total_ns:
            continue
        times = {
            field: busy_time(seen, process, activities).total_ns
            for field, activities in (
                ("kernels_us", [Activity.KERNEL]),
                ("copies_us", [Activity.MEMCPY, Activity.MEMSET]),
                ("collectives_us", [Activity.COLLECTIVE]),
                ("others_us", [each for each in WORK if each != Activity.COLLECTIVE]),
            )
        }
        length_ns = seen.length_ns(process)
        times["collectives_alone_us"] = busy.total_ns - times.pop("others_us")
        times |= {
            "length_us": length_ns,
            "busy_us": busy.total_ns,
            "idle_us": length_ns - busy.total_ns,
        }
        label = seen.processes[process].label
        rows.append({"process": label, **{field: ns / 1000 for field, ns in times.items()}})
    return rows


def _time_by_work(seen: Recording) -> dict[str, Counter[str]]:
    """The nanoseconds of the run's time by work, and in that by name.

    What isn't recorded has none.
    """
    own_ns = seen.shared_time.own_ns
    everywhere = np.arange(len(seen))
    waits = seen.nearest(everywhere, seen.device_use.waited_ns > 0) >= 0
    is_first_use = (seen.nearest(everywhere, seen.device_use.first_use_ns > 0) >= 0) & ~waits
    works = [
        (waits, [WAITING] * len(seen.names)),
        (is_first_use, [FIRST_USE] * len(seen.names)),
        (~waits & ~is_first_use, seen.path_work),
    ]
    times: dict[str, Counter[str]] = {}
    for which, path_work in works:
        by_path = np.bincount(seen.path[which], own_ns[which], len(seen.names)).tolist()
        for name, work, ns in zip(seen.names, path_work, by_path, strict=True):
            if work and ns:
                times.setdefault(work, Counter())[name] += ns
    return times


def _percentages(times: Sequence[float]) -> list[int]:
    """The percentages that times are of their sum, as whole numbers that add up to 100: those with
    the largest remainders are rounded up.
    """
    exact = [100 * max(ns, 0) / max(sum(times), 1) for ns in times]
    rounded = [int(each) for each in exact]
    by_remainder = sorted(range(len(exact)), key=lambda index: rounded[index] - exact[index])
    for index in by_remainder[: 100 - sum(rounded)]:
        rounded[index] += 1
    return rounded


def _other_parts(
    seen: Recording,
    times: Counter[str],
    largest: Sequence[tuple[str, float]],
) -> str:
    unrecorded = UNRECORDED if bool((seen.cpu_ns >= 0).any()) else UNRECORDED_OR_WAITING
    others = [work for work, _ in times.most_common()[len(largest) :]]
    left_out = [
        work if work.startswith("Python") else work[0].lower() + work[1:] for work in others
    ]
    has_unrecorded = seen.whole_ns - times.total() >= 1
    return ", ".join([*([unrecorded] if has_unrecorded else []), *left_out])


def _main_operation(parts: Counter[str], whole_ns: float) -> str:
    """The end of a sentence: the operation that had most of the time, unless it had all or next
    to nothing.
    """
    name, ns = parts.most_common(1)[0]
    if not MIN_SHARE <= ns / whole_ns <= 1 - MIN_SHARE:
        return ""
    return f": {short(name)} itself {duration(ns)} of it"
