"""A call in a thread of its own, which can be left."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator

import pytest

from otel_recfn.sinks.spans.leavable_calls import CallLeft, LeavableCalls
from otel_recfn.support.own_thread import OwnThread
from patience import PATIENCE_S

pytestmark = pytest.mark.one_python

VARIABLE = contextvars.ContextVar("VARIABLE", default="")


class Hanging:
    """A call that hangs until it may go on."""

    def __init__(self) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.began.set()
        assert self.may_end.wait(PATIENCE_S)
        return "late"


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    call = Hanging()
    yield call
    call.may_end.set()


def made_beside(calls: LeavableCalls, call: Hanging) -> tuple[threading.Thread, list[object]]:
    """A thread that makes the call, and what becomes of it there."""
    found: list[object] = []

    def make() -> None:
        try:
            found.append(calls.make(call))
        except CallLeft as left:
            found.append(left)

    thread = threading.Thread(target=make)
    thread.start()
    assert call.began.wait(PATIENCE_S)
    return thread, found


def test_it_returns_and_raises_what_the_function_does() -> None:
    calls = LeavableCalls()
    assert calls.make(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        calls.make(lambda: 1 // 0)
    with pytest.raises(SystemExit):
        calls.make(lambda: exec("raise SystemExit"))


def test_it_has_the_callers_context_and_another_thread() -> None:
    token = VARIABLE.set("the caller's")
    try:
        found = LeavableCalls().make(lambda: (VARIABLE.get(), threading.current_thread()))
    finally:
        VARIABLE.reset(token)
    assert found[0] == "the caller's"
    assert found[1] is not threading.current_thread()


def test_what_hangs_is_left_and_what_is_made_later_too(hanging: Hanging) -> None:
    calls = LeavableCalls()
    thread, found = made_beside(calls, hanging)
    calls.leave()
    thread.join(PATIENCE_S)
    assert isinstance(found[0], CallLeft)
    with pytest.raises(CallLeft):
        calls.make(hanging)
    assert calls.make(lambda: "in time") == "in time"


def test_one_that_is_not_left_is_waited_for(hanging: Hanging) -> None:
    thread, found = made_beside(LeavableCalls(), hanging)
    assert not found
    hanging.may_end.set()
    thread.join(PATIENCE_S)
    assert found == ["late"]


def test_without_a_thread_the_caller_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(OwnThread, "start", start)
    assert LeavableCalls().make(threading.current_thread) is threading.current_thread()
