"""What took the time, in a few sentences: the kinds of work that a program does, and which operation had most of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from otel_recfn.batches.forward_links import NODES_PREFIX
from otel_recfn.model.events import OPTIMIZER, SOURCES, EventSource
from otel_recfn.report.process import Process
from otel_recfn.report.recording import Recording
from otel_recfn.report.rules import COMPILATIONS, LOADER, duration

KINDS: dict[str, tuple[str, ...]] = {
    "Loading data": (LOADER,),
    "Compiling": COMPILATIONS,
    "Optimizers": (OPTIMIZER,),
    "Backward passes": (NODES_PREFIX,),
    "Calls of modules": (SOURCES[EventSource.MODULE].call_prefix or "",),
}
"""What work is called, and how the names begin of ranges in which it is done."""
OTHER_OPERATORS, THE_REST = "Other operators", "What isn't recorded, as Python between operators,"
LEAST = 0.01
"""Of the time: what is told."""


def what_took_the_time(processes: Sequence[Process]) -> list[str]:
    """At most five sentences, the longest first."""
    times: Counter[str] = Counter()
    inside: dict[str, Counter[str]] = {}
    whole_ns = 0
    for recording in map(Recording, processes):
        whole_ns += recording.whole_ns
        _add(recording, times, inside)
    times[THE_REST] = max(whole_ns - times.total(), 0)
    told = [(kind, ns) for kind, ns in times.most_common(5) if ns >= LEAST * whole_ns]
    return [f"{kind} took {ns / whole_ns:.0%} of the time, {duration(ns)}{_most(inside.get(kind), ns)}." for kind, ns in told]


def _kind(name: str) -> str:
    """Of the work that is done in a range of that name; empty where it only holds such ranges."""
    found = next((kind for kind, prefixes in KINDS.items() if name.startswith(prefixes)), "")
    return found or (OTHER_OPERATORS if "::" in name else "")


def _add(recording: Recording, times: Counter[str], inside: dict[str, Counter[str]]) -> None:
    """Each path with what it took itself, to the kind of the outermost range around it that has one."""
    kinds = [_kind(name) for name in recording.names]
    above, own = recording.paths.above.tolist(), recording.sums.self_ns.tolist()
    for path, parent in enumerate(above):
        kinds[path] = (kinds[parent] if parent >= 0 else "") or kinds[path]
        if kinds[path]:
            times[kinds[path]] += own[path]
            inside.setdefault(kinds[path], Counter())[recording.names[path]] += own[path]


def _most(parts: Counter[str] | None, whole_ns: int) -> str:
    """Which operation had most of it, unless it had all."""
    if not parts:
        return ""
    name, ns = parts.most_common(1)[0]
    return f": {name} itself {duration(ns)} of it" if LEAST <= ns / whole_ns <= 1 - LEAST else ""
