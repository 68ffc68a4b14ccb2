"""What ran in Python while threads recorded nothing, by function."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from otel_recfn.model.batch import Sample


@dataclass(frozen=True)
class SampledFunction:
    """A function of the program in which samples found a thread.

    Attributes:
        name: the function, and the library function that it called:
            ``save_checkpoint: gzip.compress``.
        thread: the thread's name.
        time: the time that the samples stand for, in microseconds.
        count: the number of samples.
    """

    name: str
    thread: str
    time: float
    count: int


def sampled_functions(samples: Iterable[Sample]) -> list[SampledFunction]:
    """The functions that samples found, by name and thread, the longest first."""
    found: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        found[sample.name, sample.thread.name].append(sample)
    functions = [
        SampledFunction(name, thread, sum(each.duration_ns for each in some) / 1000, len(some))
        for (name, thread), some in found.items()
    ]
    return sorted(functions, key=lambda function: -function.time)
