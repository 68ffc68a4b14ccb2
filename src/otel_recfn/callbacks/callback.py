"""``RecordFunctionCallback``: a pair of functions to run when a range begins and ends, and which ranges those are.

Source: ``at::RecordFunctionCallback``. Like there, each property is a method of two forms: with an argument it sets and returns
the object, so that calls chain; without one it returns the value.

    RecordFunctionCallback(start, end).needs_inputs(True).scopes({RecordScope.USER_SCOPE}).sampling_prob(0.01)

Callbacks that were added are entries of lists, which stand below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias, TypeVar, overload

from otel_recfn.model.errors import SamplingProbabilityError
from otel_recfn.model.events import ALL_SCOPES_MASK, RecordScope, scopes_mask

StartCallback: TypeAlias = "Callable[[Any], Any]"
"""Is called with the RecordFunction, ours or PyTorch's; returns the observer context for the end callback."""
EndCallback: TypeAlias = "Callable[[Any, Any], Any]"
"""Is called with the RecordFunction and the observer context, None where there is no start or it returned none.

It is not called where the start raised: the callback is removed then."""
ShouldRun: TypeAlias = Callable[[RecordScope], bool]
T = TypeVar("T")


class RecordFunctionCallback:
    """A start, an end, and when they run.

    They always run as a pair: where the start isn't called, because its range wasn't sampled, the end isn't either.

    Args:
        start: called with the RecordFunction when a range begins; may return an observer context. None: nothing to do then.
        end: called with the RecordFunction and that context when the range ends.

    Raises:
        TypeError: one of them can't be called.
    """

    __slots__ = ("_end", "_needs_ids", "_needs_inputs", "_needs_outputs", "_sampling_prob", "_scopes", "_should_run", "_start")

    def __init__(self, start: StartCallback | None, end: EndCallback | None = None) -> None:
        self._start, self._end = _callable_or_none("start", start), _callable_or_none("end", end)
        self._needs_inputs = self._needs_outputs = self._needs_ids = False
        self._sampling_prob = 1.0
        self._scopes = ALL_SCOPES_MASK
        self._should_run: ShouldRun | None = None

    def start(self) -> StartCallback | None:
        """What runs when a range begins."""
        return self._start

    def end(self) -> EndCallback | None:
        """What runs when it ends."""
        return self._end

    @overload
    def needs_inputs(self) -> bool: ...
    @overload
    def needs_inputs(self, wanted: bool) -> RecordFunctionCallback: ...
    def needs_inputs(self, wanted: bool | None = None) -> bool | RecordFunctionCallback:
        """Whether the start reads ``RecordFunction.inputs()``; passing them costs every range."""
        if wanted is None:
            return self._needs_inputs
        self._needs_inputs = bool(wanted)
        return self

    @overload
    def needs_outputs(self) -> bool: ...
    @overload
    def needs_outputs(self, wanted: bool) -> RecordFunctionCallback: ...
    def needs_outputs(self, wanted: bool | None = None) -> bool | RecordFunctionCallback:
        """Whether the end reads ``RecordFunction.outputs()``."""
        if wanted is None:
            return self._needs_outputs
        self._needs_outputs = bool(wanted)
        return self

    @overload
    def needs_ids(self) -> bool: ...
    @overload
    def needs_ids(self, wanted: bool) -> RecordFunctionCallback: ...
    def needs_ids(self, wanted: bool | None = None) -> bool | RecordFunctionCallback:
        """Whether ``RecordFunction.handle()`` must be unique."""
        if wanted is None:
            return self._needs_ids
        self._needs_ids = bool(wanted)
        return self

    @overload
    def sampling_prob(self) -> float: ...
    @overload
    def sampling_prob(self, probability: float) -> RecordFunctionCallback: ...
    def sampling_prob(self, probability: float | None = None) -> float | RecordFunctionCallback:
        """The probability, 0 to 1, with which a range is observed. 1 at first.

        Raises:
            SamplingProbabilityError: it is no number, or outside 0 to 1.
        """
        if probability is None:
            return self._sampling_prob
        if not isinstance(probability, (int, float)) or not 0.0 <= probability <= 1.0:
            raise SamplingProbabilityError(f"sampling_prob is {probability!r}; pass a probability from 0.0 to 1.0")
        self._sampling_prob = float(probability)
        return self

    @overload
    def scopes(self) -> frozenset[RecordScope]: ...
    @overload
    def scopes(self, selected: Iterable[RecordScope]) -> RecordFunctionCallback: ...
    def scopes(self, selected: Iterable[RecordScope] | None = None) -> frozenset[RecordScope] | RecordFunctionCallback:
        """The scopes whose ranges are observed; the empty set means all.

        Raises:
            SettingError: an element is not a RecordScope.
        """
        if selected is None:
            return frozenset(scope for scope in RecordScope if self.check_scope(scope))
        self._scopes = scopes_mask(selected)
        return self

    @overload
    def should_run(self) -> ShouldRun | None: ...
    @overload
    def should_run(self, predicate: ShouldRun) -> RecordFunctionCallback: ...
    def should_run(self, predicate: ShouldRun | None = None) -> ShouldRun | RecordFunctionCallback | None:
        """A predicate, called with the scope, that decides for each range of a selected scope whether to observe it.

        It replaces sampling.

        Raises:
            TypeError: it can't be called.
        """
        if predicate is None:
            return self._should_run
        self._should_run = _callable_or_none("should_run", predicate)
        return self

    def check_scope(self, scope: RecordScope) -> bool:
        """Whether ranges of this scope are observed."""
        return bool(self._scopes >> scope & 1)


def _callable_or_none(name: str, function: T) -> T:
    if function is not None and not callable(function):
        raise TypeError(f"{name}={function!r} can't be called; pass a function, or None")
    return function


# --- lists of callbacks


class CallbackEntry(NamedTuple):
    """A callback as it was when it was added: changing the object afterwards changes nothing."""

    callback: RecordFunctionCallback
    handle: int
    """Unique in the process; callbacks run in its order."""
    enabled: bool = True


Entries: TypeAlias = tuple[CallbackEntry, ...]
"""Replaced and never changed, so that an open range keeps the list that it began with."""
_BY_HANDLE = attrgetter("handle")


def with_entry(entries: Entries, entry: CallbackEntry) -> Entries:
    """The list with one more entry, in the order of handles."""
    return tuple(sorted((*entries, entry), key=_BY_HANDLE))


def without(entries: Entries, handle: int) -> Entries:
    """The list without the entry with this handle."""
    return tuple([entry for entry in entries if entry.handle != handle])


def switched(entries: Entries, handle: int, enabled: bool) -> Entries:
    """The list with the entry with this handle enabled or disabled."""
    return tuple([entry._replace(enabled=enabled) if entry.handle == handle else entry for entry in entries])


def has(entries: Entries, handle: int) -> bool:
    """Whether one has this handle."""
    return any(entry.handle == handle for entry in entries)


def any_enabled(entries: Entries) -> bool:
    """Whether one is enabled."""
    return any(entry.enabled for entry in entries)
