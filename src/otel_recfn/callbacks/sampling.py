"""Which callbacks run on the next range of a scope in a thread.

Whether a sampled callback runs is not drawn at each range. Instead we draw how many ranges pass until it runs next (a number of
the geometric distribution), and count them down. So sampled callbacks cost one subtraction a range however many there are,
because only the next one that runs is waited for. Each thread has draws of its own: threads share nothing, and a seed makes a
thread's samples repeatable (source: PyTorch's per-thread cache of active callbacks).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from random import Random
from typing import NamedTuple, TypeAlias

from otel_recfn.callbacks.callback import CallbackEntry, EndCallback, StartCallback
from otel_recfn.model.events import RecordScope

NEVER = 1 << 62

Ask: TypeAlias = Callable[[CallbackEntry, RecordScope], bool]
"""Whether a callback that has a ``should_run`` runs on the range of that scope that begins now."""


class StartEndPair(NamedTuple):
    """What runs on one range for one callback."""

    start: StartCallback | None
    end: EndCallback | None
    handle: int


class StepCallbacks(NamedTuple):
    """What runs on one range (source: ``at::StepCallbacks``)."""

    callbacks: tuple[StartEndPair, ...]
    thread_id: int
    """RecordFunction's logical id of the thread."""
    scope: RecordScope
    needs_inputs: bool = False
    needs_outputs: bool = False
    needs_ids: bool = False

    def empty(self) -> bool:
        """Whether nothing runs."""
        return not self.callbacks


def tries_until_run(generator: Random, probability: float) -> int:
    """How many ranges it takes until one is observed, that one included. ``probability``: above 0, below 1."""
    return 1 + int(math.log(1.0 - generator.random()) / math.log1p(-probability))


class _Candidate:
    """A callback that wants the scope."""

    __slots__ = ("asked", "entry", "probability", "tries_left")

    def __init__(self, entry: CallbackEntry, generator: Random) -> None:
        self.entry = entry
        self.asked = entry.callback.should_run() is not None
        self.probability = 1.0 if self.asked else entry.callback.sampling_prob()
        self.tries_left = tries_until_run(generator, self.probability) if self.probability < 1.0 else NEVER


class ScopeSampler:
    """One thread's callbacks of one scope.

    Args:
        scope: theirs.
        entries: the callbacks, in the order in which they run.
        generator: the thread's.
        ask: calls their ``should_run``.
    """

    __slots__ = ("_ask", "_asked", "_candidates", "_countdown", "_generator", "_picked", "_ready", "_scope", "_steps")

    def __init__(self, scope: RecordScope, entries: Iterable[CallbackEntry], generator: Random, ask: Ask) -> None:
        self._scope, self._generator, self._ask = scope, generator, ask
        self._candidates = [_Candidate(entry, generator) for entry in entries if _may_run(entry, scope)]
        self._asked = any(each.asked for each in self._candidates)
        self._ready = StepCallbacks((), 0, scope)
        self._steps = 0
        self._pick()

    def step(self, thread_id: int) -> StepCallbacks:
        """What runs on the range that begins now. ``thread_id``: the calling thread's logical id."""
        self.draw()
        if self._asked:
            return self._assemble([each.entry for each in self._picked if self._agrees(each)], thread_id)
        if self._ready.thread_id != thread_id:
            self._ready = self._assemble([each.entry for each in self._picked], thread_id)
        return self._ready

    def draw(self) -> None:
        """Count a range that begins. Ranges on which no callback may run count as well."""
        self._countdown -= 1
        if self._countdown == 0:
            self._pick()

    def ranges_without_callbacks(self) -> int:
        """On how many of the next ranges nothing runs."""
        return self._countdown - 1 if not self._picked else 0

    def pass_over(self, ranges: int) -> None:
        """Count so many ranges without callbacks that begin without a call of ``step``; a negative number takes that back."""
        self._countdown -= ranges

    def _pick(self) -> None:
        """Choose what runs until the countdown ends: on this one range where a sampled callback runs now."""
        self._picked: list[_Candidate] = []
        self._countdown = NEVER
        for each in self._candidates:
            if each.probability == 1.0:
                self._picked.append(each)
                continue
            each.tries_left -= self._steps
            if each.tries_left == 0:
                self._picked.append(each)
                each.tries_left = tries_until_run(self._generator, each.probability)
                due = 1
            else:
                due = each.tries_left
            self._countdown = min(self._countdown, due)
        self._steps = self._countdown
        self._ready = self._assemble([each.entry for each in self._picked], self._ready.thread_id)

    def _agrees(self, candidate: _Candidate) -> bool:
        return not candidate.asked or self._ask(candidate.entry, self._scope)

    def _assemble(self, entries: list[CallbackEntry], thread_id: int) -> StepCallbacks:
        found = [entry.callback for entry in entries]
        return StepCallbacks(
            tuple(StartEndPair(entry.callback.start(), entry.callback.end(), entry.handle) for entry in entries),
            thread_id,
            self._scope,
            any(each.needs_inputs() for each in found),
            any(each.needs_outputs() for each in found),
            any(each.needs_ids() for each in found),
        )


def _may_run(entry: CallbackEntry, scope: RecordScope) -> bool:
    callback = entry.callback
    wanted = callback.should_run() is not None or callback.sampling_prob() > 0.0
    return entry.enabled and callback.check_scope(scope) and wanted
