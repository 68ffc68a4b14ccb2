"""The rule about Python that runs outside of PyTorch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from otel_recfn.batches.sampled_functions import SampledFunction, waits_for_work
from otel_recfn.batches.wall import OUTSIDE, ThreadTime
from otel_recfn.model.batch import Sample
from otel_recfn.report.finding import MIN_SHARE, SERIOUS_SHARE, Finding
from otel_recfn.report.kinds import LOADER_MODULES
from otel_recfn.report.labels import duration, shorten
from otel_recfn.report.recording import Recording
from otel_recfn.report.rules.loading import main_item

MIN_SAMPLES = 5
"""The minimum number of samples of a function: fewer may have found it by chance."""
MAX_OTHERS = 3
NEXT_STEP = (
    "Do it less often, or in another thread or process. profile(python_calls=True) shows what it"
    " calls."
)


def runs_outside(recording: Recording) -> Finding | None:
    """The finding that a Python function takes much of the wall time outside of PyTorch.

    One that waits for the work of others is of interest if no other one takes much.
    """
    found = [
        (thread, function)
        for thread in map(_without_loader, recording.walls[0].threads)
        for function in thread.functions
        if function.count >= MIN_SAMPLES and _share(recording, thread, function) >= MIN_SHARE
    ]
    if not found:
        return None
    thread, function = max(
        found, key=lambda each: (not waits_for_work(each[1].name), _time_ns(*each))
    )
    share = _share(recording, thread, function)
    is_waiting = waits_for_work(function.name)
    samples = [
        each
        for each in recording.processes[0].samples
        if (each.name, each.thread.name) == (function.name, function.thread)
    ]
    return Finding(
        title=f"`{shorten(function.name)}` runs {OUTSIDE}",
        text=_evidence(thread, function, samples) + _awaited(samples),
        share=share,
        next_step=NEXT_STEP,
        serious=share >= SERIOUS_SHARE and not is_waiting,
        rule="outside",
        is_waiting=is_waiting,
    )


def _evidence(thread: ThreadTime, function: SampledFunction, samples: Sequence[Sample]) -> str:
    whole = duration(float(thread.outside_ns))
    text = (
        f"{function.count:,} samples of {thread.name} found it there"
        f"{main_item(function, samples)}: about"
        f" {duration(_time_ns(thread, function))} of {whole} {OUTSIDE}."
    )
    others = [
        f"`{shorten(each.name)}` ({duration(each.time * 1000)})"
        for each in thread.functions
        if each is not function
    ]
    return f"{text} Then come {', '.join(others[:MAX_OTHERS])}." if others else text


def _awaited(samples: Sequence[Sample]) -> str:
    """The sentence that names the other thread for which a function waited most, given its samples;
    empty if it mostly didn't.
    """
    awaited = Counter(each.waits_for for each in samples if each.waits_for_thread)
    name, count = awaited.most_common(1)[0] if awaited else ("", 0)
    if 2 * count < len(samples):
        return ""
    return f" Meanwhile it waited for the thread `{shorten(name)}`, which worked."


def _without_loader(thread: ThreadTime) -> ThreadTime:
    """The thread without functions of a DataLoader: in a worker that has nothing to do they wait
    for the loop, whose frames a forked worker has.
    """
    functions = [each for each in thread.functions if LOADER_MODULES not in each.name]
    return thread._replace(functions=functions)


def _time_ns(thread: ThreadTime, function: SampledFunction) -> float:
    """The time of a function of the thread, as samples estimate it."""
    return min(function.time * 1000, float(thread.outside_ns))


def _share(recording: Recording, thread: ThreadTime, function: SampledFunction) -> float:
    return min(_time_ns(thread, function) / recording.whole_ns, 1.0)
