"""The sentences that say what took the time, and what GPUs did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from otel_recfn.batches.wall import Wall
from otel_recfn.report.activities import WORK, Activity
from otel_recfn.report.device_use import busy_time
from otel_recfn.report.kinds import FIRST_USE, WAITING, WORKS
from otel_recfn.report.labels import duration, shorten
from otel_recfn.report.recording import Recording

OUTSIDE_WORK = "Code outside PyTorch"
"""The work of moments in which no thread has a range, or only steps."""
OUTSIDE_PARTS = "Python between operators, files, or waiting"
MAX_WORK_KINDS = 5
MIN_SHARE = 0.01
"""The minimum share of the time that has a sentence."""


def describe_time(recording: Recording) -> list[str]:
    """The sentences that say how much of the wall time each kind of work took, at most six with
    the time outside PyTorch, and which operation most of that; and how much the rest. Their
    percentages add up to 100, as no moment counts twice."""
    inside = _time_by_work(recording)
    times = Counter({work: parts.total() for work, parts in inside.items()})
    outside_ns = recording.whole_ns - times.total()
    min_ns = MIN_SHARE * recording.whole_ns
    named = [(work, ns) for work, ns in times.most_common(MAX_WORK_KINDS) if ns >= min_ns]
    others = [work for work, _ in times.most_common()[len(named) :]]
    if outside_ns >= 1:
        named.append((OUTSIDE_WORK, outside_ns))
        named.sort(key=lambda each: -each[1])
    other_ns = sum(times[work] for work in others)
    percentages = _percentages([ns for _, ns in named] + [other_ns])
    sentences = [
        f"{work} took {percentage}% of the time, {duration(ns)}"
        f"{_explanation(inside, work, ns, recording.walls)}."
        for (work, ns), percentage in zip(named, percentages, strict=False)
    ]
    if other_ns >= 1:
        parts = ", ".join(map(_in_sentence, others))
        sentences.append(
            f"The rest took {percentages[-1]}% of the time, {duration(other_ns)}: {parts}."
        )
    return sentences


def wall_sentences(recording: Recording) -> list[str]:
    """The sentences that say the wall time of each process, and what threads did in it."""
    if len(recording.processes) == 1:
        return recording.walls[0].sentences()
    return [
        f"{process.label}: {sentence}"
        for process, wall in zip(recording.processes, recording.walls, strict=True)
        for sentence in wall.sentences()
    ]


def describe_gpu(recording: Recording) -> list[str]:
    """The sentences, one for each process with a GPU, that say how much of the time that was busy,
    and with what.
    """
    sentences = []
    for use in device_rows(recording):
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
        whose = f"{use['process']}: the" if len(recording.processes) > 1 else "The"
        busy = use["busy_us"] / length_us
        opening = (
            f"{whose} GPU was busy for {busy:.0%} of {duration(1000 * length_us)}, idle for"
            f" {1 - busy:.0%}: "
        )
        sentences.append(f"{opening}{', '.join(parts)}.")
    return sentences


def device_rows(recording: Recording) -> list[dict[str, Any]]:
    """The times of each process' GPU in microseconds, from the first begin to the last end of all
    that was recorded in the process; kinds of work may overlap.
    """
    rows = []
    for process, busy in enumerate(recording.device_use.busy):
        if not busy.total_ns:
            continue
        times = {
            field: busy_time(recording, process, activities).total_ns
            for field, activities in (
                ("kernels_us", [Activity.KERNEL]),
                ("copies_us", [Activity.MEMCPY, Activity.MEMSET]),
                ("collectives_us", [Activity.COLLECTIVE]),
                ("others_us", [each for each in WORK if each != Activity.COLLECTIVE]),
            )
        }
        length_ns = recording.length_ns(process)
        times["collectives_alone_us"] = busy.total_ns - times.pop("others_us")
        times |= {
            "length_us": length_ns,
            "busy_us": busy.total_ns,
            "idle_us": length_ns - busy.total_ns,
        }
        label = recording.processes[process].label
        rows.append({"process": label, **{field: ns / 1000 for field, ns in times.items()}})
    return rows


def _time_by_work(recording: Recording) -> dict[str, Counter[str]]:
    """The nanoseconds of the run's time by work, and in that by name.

    Steps and what isn't recorded have none.
    """
    own_ns = recording.shared_time.own_ns
    everywhere = np.arange(len(recording))
    waits = recording.nearest(everywhere, recording.device_use.waited_ns > 0) >= 0
    is_first_use = recording.nearest(everywhere, recording.device_use.first_use_ns > 0) >= 0
    work = recording.work.copy()
    work[is_first_use] = WORKS.index(FIRST_USE)
    work[waits] = WORKS.index(WAITING)
    paths = len(recording.names)
    sums = np.bincount(work * paths + recording.path, own_ns, len(WORKS) * paths)
    times: dict[str, Counter[str]] = {}
    for index in np.flatnonzero(sums).tolist():
        number, path = divmod(index, paths)
        if number:
            times.setdefault(WORKS[number], Counter())[recording.names[path]] += sums[index].item()
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


def _in_sentence(work: str) -> str:
    return work if work.startswith("Python") else work[0].lower() + work[1:]


def _explanation(
    inside: Mapping[str, Counter[str]], work: str, ns: float, walls: Sequence[Wall]
) -> str:
    """The end of a sentence: what may have run outside PyTorch, or the main operation."""
    if work in inside:
        return _main_operation(inside[work], ns)
    functions = [each for wall in walls for thread in wall.threads for each in thread.functions]
    if not functions:
        return f": {OUTSIDE_PARTS}"
    return f": {shorten(max(functions, key=lambda each: each.time).name)} most of it (sampled)"


def _main_operation(parts: Counter[str], whole_ns: float) -> str:
    """The end of a sentence: the operation that had most of the time, unless it had all or next
    to nothing.
    """
    name, ns = parts.most_common(1)[0]
    if not MIN_SHARE <= ns / whole_ns <= 1 - MIN_SHARE:
        return ""
    return f": {shorten(name)} itself {duration(ns)} of it"
