"""What ran in Python while threads recorded nothing: by function, and as runs of samples.

thread   [ aten::mm ]                                  [ aten::mm ]
samples       ·  save: gzip.compress  ·  ·  json.dumps  ·    ·
              ├──────── run ─────────────┤├──── run ────┤
                                                             └ none: an operator is open
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from otel_recfn.model.batch import Sample
from otel_recfn.model.columns import Track

SAMPLED = "python_sample"
"""The category of a run of samples in a Chrome trace."""
SAMPLED_FUNCTION, SAMPLE_COUNT, SAMPLED_TIME = "Sampled function", "Samples", "Sampled time (ns)"
WAITED_FOR, IN_OPERATOR, LOADED_ITEM = "Waited for", "In operator", "Item"
"""Its arguments; the last one only if a DataLoader makes an item meanwhile."""
MAX_THREADS = 256
"""The maximum number of threads whose last runs wait for more samples."""
MAX_RUNS = 256
"""The maximum number of runs of a thread that wait until something begins or ends in it."""
WAITS_FOR_WORK = (
    "asyncio.",
    "concurrent.futures.",
    "multiprocessing.",
    "queue.",
    "select.",
    "selectors.",
    "socket.",
    "socketserver.",
    "threading.",
)
"""The modules whose functions wait for others: a thread that waits for work is no trouble."""


def waits_for_work(name: str) -> bool:
    """Whether a sampled function waits for others."""
    return called_function(name).startswith(WAITS_FOR_WORK)


def has_no_work(name: str) -> bool:
    """Whether it waits for others and no function of the program has called it, as in a thread of
    a pool that has nothing to do.
    """
    return name.startswith(WAITS_FOR_WORK)


def called_function(name: str) -> str:
    """The library function that a sampled function had called; itself if it had called none."""
    return name.rpartition(": ")[2]


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
        if not sample.is_in_operator:
            found[sample.name, sample.thread.name].append(sample)
    functions = [
        SampledFunction(name, thread, sum(each.duration_ns for each in some) / 1000, len(some))
        for (name, thread), some in found.items()
    ]
    return sorted(functions, key=lambda function: -function.time)


class SampledRun(NamedTuple):
    """Successive samples that found a thread in one function, in a DataLoader for one item.

    Nothing began or ended in the thread meanwhile, so that no range of the thread begins or ends in
    it. Times are in Unix nanoseconds.
    """

    name: str
    thread: Track
    since_ns: int
    """Since when nothing had begun or ended in the thread."""
    start_ns: int
    end_ns: int
    """The moment of the last sample."""
    duration_ns: int
    """The time that the samples stand for."""
    samples: int
    parent: int
    """The event id of the innermost range around it, which the program runs; 0: none."""
    is_directly_in_span: bool
    """Whether no range was open around it but a step."""
    is_in_operator: bool
    """Whether the thread waited in an operator, whose time it is."""
    waits_ns: Mapping[str, int]
    """The time for which the thread waited, by what it waited for."""
    item: str = ""
    """The index of the item that a DataLoader makes, as in a sample."""

    @property
    def waits_for(self) -> str:
        """What the thread waited for first; empty if it worked, or isn't known to have waited."""
        return next(iter(self.waits_ns), "")

    @property
    def enclosing(self) -> int:
        """The event id of the innermost range around it in the same span; 0: none."""
        return 0 if self.is_directly_in_span else self.parent

    @property
    def length_ns(self) -> int:
        """The time from its begin to its end."""
        return self.end_ns - self.start_ns

    def within(self, start_ns: int, end_ns: int) -> SampledRun:
        """The part of the run between these moments; it ends as it begins if there is none."""
        start_ns = max(self.start_ns, start_ns)
        return self._replace(start_ns=start_ns, end_ns=max(start_ns, min(self.end_ns, end_ns)))

    def with_sample(self, sample: Sample) -> SampledRun:
        """The run with one sample more."""
        return self._replace(
            end_ns=sample.time_ns,
            duration_ns=self.duration_ns + sample.duration_ns,
            samples=self.samples + 1,
            waits_ns=sum_of(self.waits_ns, _waits_ns(sample)),
        )


class SampledRuns:
    """Samples as runs. Those of a thread wait until something has begun or ended in it.

    Args:
        by_wait: whether a run ends, too, when its thread waits for something else.
    """

    def __init__(self, *, by_wait: bool = False) -> None:
        self._by_wait = by_wait
        self._last: dict[int, list[SampledRun]] = {}
        """The runs that wait, by the thread's number."""

    def add(self, samples: Iterable[Sample]) -> list[SampledRun]:
        """Add samples, those of a thread in order, and return the runs that wait no longer."""
        over: list[SampledRun] = []
        for sample in samples:
            runs = self._last.pop(sample.thread.number, [])
            if runs and runs[-1].since_ns != sample.since_ns:
                over += runs
                runs = []
            if runs and self._goes_on(runs[-1], sample):
                runs[-1] = runs[-1].with_sample(sample)
            else:
                runs.append(_run_of(sample, runs[-1].end_ns if runs else sample.since_ns))
            if len(runs) > MAX_RUNS:
                over.append(runs.pop(0))
            self._last[sample.thread.number] = runs
            if len(self._last) > MAX_THREADS:
                over += self._last.pop(next(iter(self._last)))
        return over

    def _goes_on(self, run: SampledRun, sample: Sample) -> bool:
        """Whether a later sample of the thread belongs to a run."""
        waits_for_same = not self._by_wait or run.waits_for == sample.waits_for
        is_same = waits_for_same and run.name == sample.name and run.item == sample.item
        return is_same and run.since_ns == sample.since_ns

    def waiting(self) -> list[SampledRun]:
        """The runs that wait, as they are so far."""
        return [run for runs in self._last.values() for run in runs]


def _run_of(sample: Sample, earliest_ns: int) -> SampledRun:
    """The run of one sample, which begins then or later."""
    return SampledRun(
        name=sample.name,
        thread=sample.thread,
        since_ns=sample.since_ns,
        start_ns=max(earliest_ns, sample.time_ns - sample.duration_ns),
        end_ns=sample.time_ns,
        duration_ns=sample.duration_ns,
        samples=1,
        parent=sample.parent,
        is_directly_in_span=sample.is_directly_in_span,
        is_in_operator=sample.is_in_operator,
        waits_ns=_waits_ns(sample),
        item=sample.item,
    )


def _waits_ns(sample: Sample) -> Mapping[str, int]:
    return {sample.waits_for: sample.duration_ns} if sample.waits_for else {}


def sum_of(times: Mapping[str, int], more: Mapping[str, int]) -> Mapping[str, int]:
    """The times by name, together with more of them."""
    if not more:
        return times
    return {**times, **{name: times.get(name, 0) + each for name, each in more.items()}}
