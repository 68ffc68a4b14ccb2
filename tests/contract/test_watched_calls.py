"""Calls of a Python function that is watched: told at begin and end, whatever way they are made
and left in.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from otel_recfn import _native as native  # the functions under test, which only pytorch/ calls


class Base:
    def handed_on(self, *positional: Any, **keywords: Any) -> Any:
        if isinstance(positional[0], BaseException):
            raise positional[0]
        return positional[0](self) if callable(positional[0]) else (self, positional, keywords)

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        return self.handed_on(*positional, **keywords)


class Own(Base):
    def __call__(self, value: Any) -> Any:
        return super().__call__(value)


class Watched:
    """Begins and ends, as they were told."""

    def __init__(self) -> None:
        self.notes: list[Any] = []
        self.observer: Any = None

    def enter(self, subject: object) -> Any:
        self.notes.append(("enter", subject))
        return len(self.notes)

    def leave(self, token: Any, *error: Any) -> None:
        self.notes.append(("leave", token, *error))

    def set_observer(self, observer: Any) -> Any:
        before, self.observer = self.observer, observer
        return before


@pytest.fixture
def watched() -> Iterator[Watched]:
    watch = Watched()
    functions = (
        (Base.__call__, Base.handed_on) if sys.version_info[:2] == (3, 11) else (Base.__call__,)
    )
    native.watch_calls(functions, watch.enter, watch.leave)
    native.set_frame_observer(watch.set_observer)
    yield watch
    native.set_frame_observer(None)
    native.unwatch_calls()


CALLS: dict[str, Callable[[Any], Any]] = {
    "called": lambda one: one(1),
    "its method": lambda one: one.__call__(1),
    "its class's method": lambda one: type(one).__call__(one, 1),
    "with arguments from a list": lambda one: one(*[1]),
    "by the builtin map": lambda one: next(map(one, [1])),
}


@pytest.mark.parametrize("kind", [Base, Own])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_is_told_once(watched: Watched, kind: type, call: str) -> None:
    one = kind()
    for _ in range(20):  # CPython specializes what is called often
        watched.notes.clear()
        assert CALLS[call](one) == (one, (1,), {})
        assert watched.notes == [("enter", one), ("leave", 1, None)]


@pytest.mark.parametrize(
    "error", [ValueError("no"), KeyboardInterrupt(), GeneratorExit(), StopIteration(3)]
)
def test_an_exception(watched: Watched, error: BaseException) -> None:
    with pytest.raises(type(error)) as raised:
        Base()(error)
    assert raised.value is error
    assert watched.notes[1:] == [("leave", 1, error)]
    assert [entry.name for entry in raised.traceback][-2:] == ["__call__", "handed_on"]


def test_an_observer_of_frames_sees_nothing_of_it_and_all_of_the_call(watched: Watched) -> None:
    seen = []

    def enter(subject: object) -> Any:
        seen.append(watched.observer)
        return subject

    native.unwatch_calls()
    native.watch_calls((Base.__call__,), enter, lambda token, _error: enter(token))
    watched.observer = "dynamo"
    Base()(lambda _: seen.append(watched.observer))
    with contextlib.suppress(ValueError):
        Base()(ValueError())
    assert seen == [None, "dynamo", None, None, None]
    assert watched.observer == "dynamo"


def test_several_functions_are_watched_each_by_its_own(watched: Watched) -> None:
    class Other:
        def __call__(self, value: Any) -> Any:
            return value

    others = Watched()
    one = Base()
    other = Other()
    native.watch_calls((Other.__call__,), others.enter, others.leave)
    assert one(other) is one  # which calls the other one
    assert (watched.notes, others.notes) == (
        [("enter", one), ("leave", 1, None)],
        [("enter", other), ("leave", 1, None)],
    )
    with pytest.raises(RuntimeError, match="watched already"):
        native.watch_calls((Other.__call__,), others.enter, others.leave)
    native.unwatch_calls()
    assert one(other) is one
    assert (len(watched.notes), len(others.notes)) == (2, 2)


def test_nothing_is_kept(watched: Watched) -> None:
    class Big:
        pass

    alive = []
    for fails in (False, True):
        big = Big()
        one = Base()
        alive += [weakref.ref(big), weakref.ref(one)]
        with contextlib.suppress(ValueError):
            one(ValueError() if fails else 1, big)
        watched.notes.clear()
        del big, one
    gc.collect()
    assert [reference() for reference in alive] == [None] * 4
