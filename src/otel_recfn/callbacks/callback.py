"""``RecordFunctionCallback``: a pair of functions to run when a range begins and ends; and on which
ranges they run.

    RecordFunctionCallback(start,
    end).needs_inputs(True).scopes({RecordScope.USER_SCOPE}).sampling_prob(0.01)

As with ``at::RecordFunctionCallback``, each property is a method of two forms: with an argument it
sets and returns the object, so that calls chain; without one it returns the value.

Whether a sampled callback runs is not drawn at each range. Instead we draw how many ranges pass
until it runs next (a number of the geometric distribution), and count ranges. So sampled callbacks
cost the same however many there are, because only the next one that runs is waited for. Each thread
has draws of its own: threads share nothing, and a seed makes a thread's samples repeatable (source:
PyTorch's per-thread cache of active callbacks).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import wraps
from random import Random
from typing import Any, NamedTuple, TypeAlias, TypeVar

from otel_recfn.errors import SamplingProbabilityError
from otel_recfn.model.events import RecordScope, scopes_mask

StartCallback: TypeAlias = "Callable[[Any], Any]"
"""A start callback: called with the RecordFunction, ours or PyTorch's; returns the observer
context for the end callback.
"""
EndCallback: TypeAlias = "Callable[[Any, Any], Any]"
"""An end callback: called with the RecordFunction and the observer context, unless the start
raised and was removed.
"""
ShouldRun: TypeAlias = Callable[[RecordScope], bool]
T = TypeVar("T")

INVALID_CALLBACK_HANDLE = 0
"""A handle that no callback has."""


def _two_forms(check: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A property with two forms, named as the method, which turns what is given into what is
    kept.
    """
    attribute = f"_{check.__name__}"

    @wraps(check)
    def get_or_set(self: Any, value: Any = None) -> Any:
        if value is None:
            return getattr(self, attribute)
        setattr(self, attribute, check(self, value))
        return self

    return get_or_set


class RecordFunctionCallback:
    """A start callback, an end callback, and the ranges on which they run.

    They always run as a pair: where the start isn't called, because its range wasn't sampled, the
    end isn't either.

    Each property is a method: ``needs_inputs(True)`` sets it and returns the callback,
    ``needs_inputs()`` returns its value.

    Args:
        start: called with the RecordFunction when a range begins; may return an observer context.
            None: nothing to do then.
        end: called with the RecordFunction and that context when the range ends.
    """

    __slots__ = (
        "__weakref__",
        "_end",
        "_needs_ids",
        "_needs_inputs",
        "_needs_outputs",
        "_sampling_prob",
        "_scopes",
        "_should_run",
        "_start",
    )

    def __init__(self, start: StartCallback | None, end: EndCallback | None = None) -> None:
        self._start = _callable_or_none("start", start)
        self._end = _callable_or_none("end", end)
        self._needs_inputs = self._needs_outputs = self._needs_ids = False
        self._sampling_prob = 1.0
        self._scopes = frozenset(RecordScope)
        self._should_run: ShouldRun | None = None

    def start(self) -> StartCallback | None:
        """The start callback."""
        return self._start

    def end(self) -> EndCallback | None:
        """The end callback."""
        return self._end

    @_two_forms
    def needs_inputs(self, wanted: bool) -> bool:
        """Whether the start reads ``RecordFunction.inputs()``; passing them costs every range."""
        return bool(wanted)

    @_two_forms
    def needs_outputs(self, wanted: bool) -> bool:
        """Whether the end reads ``RecordFunction.outputs()``."""
        return bool(wanted)

    @_two_forms
    def needs_ids(self, wanted: bool) -> bool:
        """Whether ``RecordFunction.handle()`` must be unique."""
        return bool(wanted)

    @_two_forms
    def sampling_prob(self, probability: float) -> float:
        """The probability, 0 to 1, with which a range is observed. 1 at first."""
        if not isinstance(probability, (int, float)) or not 0.0 <= probability <= 1.0:
            raise SamplingProbabilityError(
                f"sampling_prob is {probability!r}; pass a probability from 0.0 to 1.0"
            )
        return float(probability)

    @_two_forms
    def scopes(self, selected: Iterable[RecordScope]) -> frozenset[RecordScope]:
        """The scopes whose ranges are observed; the empty set means all."""
        mask = scopes_mask(selected)
        return frozenset([scope for scope in RecordScope if mask >> scope & 1])

    @_two_forms
    def should_run(self, predicate: ShouldRun) -> ShouldRun | None:
        """A predicate, called with the scope, that decides for each range of a selected scope;
        it replaces sampling.
        """
        return _callable_or_none("should_run", predicate)

    def check_scope(self, scope: RecordScope) -> bool:
        """Whether ranges of this scope are observed."""
        return scope in self._scopes


def _callable_or_none(name: str, function: T) -> T:
    if function is not None and not callable(function):
        raise TypeError(f"{name}={function!r} can't be called; pass a function, or None")
    return function


class CallbackEntry(NamedTuple):
    """A callback as it was when it was added: changing the object afterwards changes nothing."""

    callback: RecordFunctionCallback
    handle: int
    """Unique in the process; callbacks run in its order."""
    enabled: bool = True


Entries: TypeAlias = tuple[CallbackEntry, ...]
"""Callbacks in the order of their handles.

The tuple is replaced and never changed, so that an open range keeps its own.
"""


# --- which run on the next range of a scope in a thread

NEVER = 1 << 62

Ask: TypeAlias = Callable[[CallbackEntry, RecordScope], bool]
"""A function that says whether a callback with ``should_run`` runs on the range of that scope
that begins now.
"""


class StartEndPair(NamedTuple):
    """The functions of one callback that run on a range."""

    start: StartCallback | None
    end: EndCallback | None
    handle: int


class StepCallbacks(NamedTuple):
    """The callbacks that run on one range (source: ``at::StepCallbacks``)."""

    callbacks: tuple[StartEndPair, ...]
    thread_id: int
    """RecordFunction's logical id of the thread."""
    scope: RecordScope
    needs_inputs: bool = False
    needs_outputs: bool = False
    needs_ids: bool = False

    def empty(self) -> bool:
        """Whether no callback runs on the range."""
        return not self.callbacks


def tries_until_run(generator: Random, probability: float) -> int:
    """The number of ranges until one is observed, that one included.

    ``probability``: above 0, below 1.
    """
    return 1 + int(math.log(1.0 - generator.random()) / math.log1p(-probability))


class _Candidate:
    """A callback that selects the scope."""

    __slots__ = ("asked", "due", "entry", "probability")

    def __init__(self, entry: CallbackEntry, generator: Random) -> None:
        self.entry = entry
        self.asked = entry.callback.should_run() is not None
        self.probability = 1.0 if self.asked else entry.callback.sampling_prob()
        self.due = (
            tries_until_run(generator, self.probability) if 0.0 < self.probability < 1.0 else 0
        )


class ScopeSampler:
    """The callbacks of one thread for one scope, in the order in which they run.

    Ranges are numbered, so that those of a signal handler, which may interrupt any method, are but
    later ones.
    """

    __slots__ = (
        "_ask",
        "_asks",
        "_begun",
        "_candidates",
        "_generator",
        "_next_pick",
        "_picked",
        "_ready",
        "_scope",
    )

    def __init__(
        self, scope: RecordScope, entries: Iterable[CallbackEntry], generator: Random, ask: Ask
    ) -> None:
        self._scope, self._generator, self._ask = scope, generator, ask
        wanting = [
            entry for entry in entries if entry.enabled and entry.callback.check_scope(scope)
        ]
        candidates = [_Candidate(entry, generator) for entry in wanting]
        self._candidates = [each for each in candidates if each.probability > 0.0]
        self._asks = any(each.asked for each in self._candidates)
        self._ready = StepCallbacks((), 0, scope)
        self._picked: list[_Candidate] = []
        self._begun = 0
        self._pick()

    def step(self, thread_id: int) -> StepCallbacks:
        """The callbacks for the range that begins now.

        ``thread_id``: the calling thread's logical id.
        """
        self.count()
        if self._asks:
            picked = [
                each.entry
                for each in self._picked
                if not each.asked or self._ask(each.entry, self._scope)
            ]
            return self._assemble(picked, thread_id)
        if self._ready.thread_id != thread_id:
            self._ready = self._assemble([each.entry for each in self._picked], thread_id)
        return self._ready

    def count(self) -> None:
        """Count a range that begins."""
        self._begun += 1
        if self._begun >= self._next_pick:
            self._pick()

    def ranges_without_callbacks(self) -> int:
        """The number of next ranges on which no callback runs."""
        return max(0, self._next_pick - self._begun - 1) if not self._picked else 0

    def pass_over(self, ranges: int) -> None:
        """Count so many ranges that run no callbacks; a negative number takes that back."""
        self._begun += ranges

    def _pick(self) -> None:
        """Choose the callbacks that run until the next pick: on this range alone if a sampled
        one runs now.
        """
        picked: list[_Candidate] = []
        next_pick = NEVER
        for each in self._candidates:
            if each.due > self._begun:
                next_pick = min(next_pick, each.due)
                continue
            picked.append(each)
            if each.probability < 1.0:
                each.due = self._begun + tries_until_run(self._generator, each.probability)
                next_pick = self._begun + 1
        ready = self._ready
        if picked != self._picked:
            ready = self._assemble([each.entry for each in picked], ready.thread_id)
        self._picked, self._next_pick, self._ready = picked, next_pick, ready

    def _assemble(self, entries: list[CallbackEntry], thread_id: int) -> StepCallbacks:
        found = [entry.callback for entry in entries]
        pairs = [
            StartEndPair(entry.callback.start(), entry.callback.end(), entry.handle)
            for entry in entries
        ]
        return StepCallbacks(
            tuple(pairs),
            thread_id,
            self._scope,
            needs_inputs=any(each.needs_inputs() for each in found),
            needs_outputs=any(each.needs_outputs() for each in found),
            needs_ids=any(each.needs_ids() for each in found),
        )
