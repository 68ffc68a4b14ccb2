"""The rule about Python that runs outside of PyTorch."""

from __future__ import annotations

from otel_recfn.batches.sampled_functions import waits_for_work
from otel_recfn.batches.wall import OUTSIDE, ThreadTime
from otel_recfn.report.finding import MIN_SHARE, SERIOUS_SHARE, Finding
from otel_recfn.report.kinds import LOADER_MODULES
from otel_recfn.report.labels import duration, shorten
from otel_recfn.report.recording import Recording

MIN_SAMPLES = 5
"""The minimum number of samples of a function: fewer may have found it by chance."""
MAX_OTHERS = 3
NEXT_STEP = (
    "Do it less often, or in another thread or process. profile(python_calls=True) shows what it"
    " calls."
)


def runs_outside(recording: Recording) -> Finding | None:
    """The finding that a Python function takes much of the wall time outside of PyTorch."""
    threads = [_without_loader(thread) for thread in recording.walls[0].threads]
    found = [thread for thread in threads if thread.functions]
    if not found:
        return None
    thread = max(found, key=_longest_ns)
    function, *others = thread.functions
    share = min(_longest_ns(thread) / recording.whole_ns, 1.0)
    if share < MIN_SHARE or function.count < MIN_SAMPLES:
        return None
    text = (
        f"{function.count:,} samples of {thread.name} found it there: about"
        f" {duration(_longest_ns(thread))} of {duration(float(thread.outside_ns))} {OUTSIDE}."
    )
    if others:
        names = [
            f"`{shorten(each.name)}` ({duration(each.time * 1000)})" for each in others[:MAX_OTHERS]
        ]
        text += f" Then come {', '.join(names)}."
    return Finding(
        title=f"`{shorten(function.name)}` runs {OUTSIDE}",
        text=text,
        share=share,
        next_step=NEXT_STEP,
        serious=share >= SERIOUS_SHARE and not waits_for_work(function.name),
        rule="outside",
    )


def _without_loader(thread: ThreadTime) -> ThreadTime:
    """The thread without functions of a DataLoader: in a worker that has nothing to do they wait
    for the loop, whose frames a forked worker has.
    """
    functions = [each for each in thread.functions if LOADER_MODULES not in each.name]
    return thread._replace(functions=functions)


def _longest_ns(thread: ThreadTime) -> float:
    """The time of its longest function, as samples estimate it."""
    return min(thread.functions[0].time * 1000, float(thread.outside_ns))
