"""The rules about a DataLoader.

    has_slow_batches    a few batches take far longer than all others: an item in them is slow
    waits_for_data      the loop waits for the other batches, but for the first

Both are about the time in which the loop waits in the loader's iterator. Samples say which function
of the dataset takes it: those of the loop's thread if it makes the batches itself, otherwise those
of the workers, which are processes beside this one.

    loop     ─[ step ]──[ enumerate(DataLoader)#... waits          ]──[ step ]──
    worker   ─────────────·  Pictures.__getitem__: PIL.Image.open · ─────────
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from otel_recfn.batches.busy_time import BusyTime
from otel_recfn.batches.call_paths import Amounts
from otel_recfn.batches.number_sets import Indices
from otel_recfn.batches.sampled_functions import (
    WAITS_FOR_WORK,
    SampledFunction,
    sampled_functions,
)
from otel_recfn.model.batch import Sample
from otel_recfn.report.finding import Finding, finding_about
from otel_recfn.report.kinds import LOADER, LOADER_MODULES
from otel_recfn.report.labels import duration, shorten
from otel_recfn.report.nesting import Mask
from otel_recfn.report.recording import Recording

MIN_TIMES_SLOWER = 5
"""The minimum ratio of a slow batch to the longest of all others: batches of workers that fall
behind differ, too, as some are ready and the loop waits for others.
"""
BATCHES_PER_SLOW_ONE = 20
"""The minimum number of batches to each slow one: if more are slow, the loader is."""
MIN_ITEM_SHARE = 0.5
"""The minimum share of the samples of a function that found it at one item, if that is named."""
MIN_BATCHES = 4
"""The minimum number of batches of which one may be slow: three others show what is usual."""
WORKERS = "MultiProcessing"
"""A part of the name of an iterator that waits for worker processes."""

FASTER_WORKERS = (
    "Do less for a sample, or give the DataLoader persistent_workers=True or more num_workers."
)
OTHER_PROCESSES = (
    "Have other processes make batches ahead: DataLoader(num_workers=4, persistent_workers=True)."
)
SLOW_ITEM = (
    "Time dataset[index] for that item or, if none is named, for the indices of that batch. If the"
    " first batch of each epoch is slow, workers start with it: persistent_workers=True."
)


def waits_for_data(recording: Recording) -> Finding | None:
    """The finding that the loop waits for its DataLoader.

    The first batch is left out, as workers start with it, and so are slow batches.
    """
    batches = _calls(recording)
    usual = _batches(recording)
    usual = usual[~_are_slow(recording.total_ns[usual])]
    ranges = usual[usual != batches[:1]]
    if not len(ranges):
        return None
    times = recording.total_ns[ranges]
    main = recording.main_path(ranges, times)
    if WORKERS in recording.names[main]:
        reason = "waits for its workers"
        next_step = FASTER_WORKERS
    else:
        reason = "makes each batch in the loop itself"
        next_step = OTHER_PROCESSES
    # The tree of calls has a line for each path. The finding names the count of that line, so that
    # users find it there.
    on_main_path = int((recording.path[batches] == main).sum())
    where = f", {on_main_path:,} of them in {{most}}" if on_main_path < len(batches) else ""
    return finding_about(
        recording,
        ranges,
        times,
        rule="data",
        title="Waits for data",
        text=(
            f"The DataLoader {reason}: {len(batches):,} batches{where}; after the first they take"
            f" {duration(times.mean())} each.{_function_in(recording, ranges)}"
        ),
        next_step=next_step,
    )


def has_slow_batches(recording: Recording) -> Finding | None:
    """The finding that the loop waits for a few batches far longer than for all others.

    The first batch of workers is no fault, unless it is known what took it: they start with it.
    """
    batches = _batches(recording)
    is_slow = _are_slow(recording.total_ns[batches])
    ranges = batches[is_slow]
    if not len(ranges):
        return None
    times = recording.total_ns[ranges]
    longest = int(times.argmax())
    longest_ns = float(times[longest])
    number = int(np.flatnonzero(is_slow)[longest])
    others_ns = float(recording.total_ns[batches[~is_slow]].max())
    has_workers = WORKERS in recording.names[int(recording.path[ranges[longest]])]
    function = _function_in(recording, ranges)
    more = f" {len(ranges):,} batches are slow." if len(ranges) > 1 else ""
    found = finding_about(
        recording,
        ranges,
        times,
        rule="batch",
        title=f"A batch takes {longest_ns / max(others_ns, 1.0):,.0f} times as long as others",
        text=(
            f"The loop waited {duration(longest_ns)} for batch {number:,} of"
            f" {len(batches):,} (from 0) in {{most}}, and at most {duration(others_ns)} for"
            f" others.{more}{function}"
        ),
        next_step=SLOW_ITEM,
    )
    may_be_start = number == 0 and has_workers and not function
    return found._replace(serious=False) if found is not None and may_be_start else found


def _calls(recording: Recording) -> Indices:
    """The calls in which the loop waits for a batch, in order."""
    calls = recording.outermost(lambda name: name.startswith(LOADER))
    return calls[np.argsort(recording.start_ns[calls], kind="stable")]


def _batches(recording: Recording) -> Indices:
    """The calls that brought a batch, in order.

    The last one of an epoch brings none, and ends the workers. StopIteration leaves it or, if that
    isn't recorded, it is the last one of all.
    """
    calls = _calls(recording)
    brings = recording.processes[0].batch.error[recording.row[calls]] == 0
    if len(calls) > 1 and bool(brings.all()):
        brings[-1] = WORKERS not in recording.names[int(recording.path[calls[-1]])]
    return np.asarray(calls[brings])


def _are_slow(times: Amounts) -> Mask:
    """Whether each batch takes at least five times as long as the longest of the others: at most
    one of twenty, if there are so many.
    """
    is_slow = np.zeros(len(times), np.bool_)
    if len(times) < MIN_BATCHES:
        return is_slow
    order = np.argsort(-times, kind="stable")
    most = max(1, len(times) // BATCHES_PER_SLOW_ONE)
    longest = times[order[: most + 1]]
    gaps = np.flatnonzero(longest[:-1] >= MIN_TIMES_SLOWER * np.maximum(longest[1:], 1))
    if len(gaps):
        is_slow[order[: gaps[-1] + 1]] = True
    return is_slow


def _function_in(recording: Recording, ranges: Indices) -> str:
    """The sentence that names the function in which samples found these batches; empty if there
    are none.
    """
    process = recording.processes[0]
    ids = {*process.batch.event_id[recording.row[ranges]].tolist()}
    own = [sample for sample in process.samples if sample.parent in ids]
    times = BusyTime(recording.start_ns[ranges], recording.end_ns[ranges])
    found = [
        (function, label, samples)
        for label, samples in [("", own), *_samples_of_workers(recording, times)]
        for function in sampled_functions(samples)
        if not _waits(function.name)
    ]
    if not found:
        return ""
    function, label, samples = max(found, key=lambda each: each[0].time)
    where = f" in {label}" if label else ""
    return (
        f" `{shorten(function.name)}` ran meanwhile{where}: {function.count:,} samples found it"
        f" there{main_item(function, samples)}."
    )


def main_item(function: SampledFunction, samples: Sequence[Sample]) -> str:
    """The words that name the item at which most samples found a function; empty if it isn't known,
    or if they are of many items.
    """
    items = Counter(each.item for each in samples if each.name == function.name and each.item)
    item, count = items.most_common(1)[0] if items else ("", 0)
    if count < MIN_ITEM_SHARE * function.count:
        return ""
    return f", {count:,} of them at index {shorten(item)}"


def _samples_of_workers(
    recording: Recording, times: BusyTime
) -> Iterator[tuple[str, list[Sample]]]:
    """The samples of other processes in these times, with the label of each process."""
    for process in recording.other_processes:
        moments = np.array([sample.time_ns for sample in process.samples], np.int64)
        is_meanwhile = times.time_during(moments - 1, moments) > 0
        selected = np.flatnonzero(is_meanwhile).tolist()
        yield process.label, [process.samples[index] for index in selected]


def _waits(function: str) -> bool:
    """Whether a sampled function waits for batches, or for work that no function of the program
    asks for.
    """
    return LOADER_MODULES in function or function.startswith(WAITS_FOR_WORK)
