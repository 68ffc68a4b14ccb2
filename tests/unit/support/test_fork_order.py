"""Around forks: one place, one order, and nobody's failure is another's."""

from __future__ import annotations

import ast
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import otel_recfn
from otel_recfn.support import forks
from otel_recfn.support.forks import Order, around_forks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
PACKAGE = Path(otel_recfn.__file__).parent


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    # Nobody else ever takes back what is done around forks.
    before = forks._registered  # noqa: SLF001
    yield
    forks._registered = before  # noqa: SLF001


class Notes:
    """Notes what it is told, and by whom."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def follow(self, order: Order) -> None:
        around_forks(
            order,
            before=lambda deadline: self.heard.append(f"before {order.name}"),
            in_parent=lambda: self.heard.append(f"parent {order.name}"),
            in_child=lambda: self.heard.append(f"child {order.name}"),
        )

    def around_fork(self) -> tuple[list[str], list[str]]:
        """What the parent and what the child noted."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, "\n".join(self.heard).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            in_child = pipe.read().splitlines()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        return self.heard, in_child


def test_the_order_is_that_of_the_names_whatever_came_first() -> None:
    notes = Notes()
    for order in (Order.SESSION, Order.RECORDER, Order.THREAD_STATE):
        notes.follow(order)
    names = ["RECORDER", "SESSION", "THREAD_STATE"]
    before = [f"before {name}" for name in reversed(names)]
    parent, child = notes.around_fork()
    assert parent == [*before, *(f"parent {name}" for name in names)]
    assert child == [*before, *(f"child {name}" for name in names)]


def test_one_that_raises_is_logged_and_the_others_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(deadline: float = 0.0) -> None:
        raise KeyError("mine")

    notes = Notes()
    around_forks(Order.RECORDER, before=fail, in_parent=fail, in_child=fail)
    notes.follow(Order.RECORDER)
    around_forks(Order.THREAD_STATE, before=fail, in_parent=fail, in_child=fail)
    parent, child = notes.around_fork()
    assert parent == ["before RECORDER", "parent RECORDER"]
    assert child == ["before RECORDER", "child RECORDER"]
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == [
        "'mine'"
    ] * 4


def test_the_deadline_is_the_same_for_all() -> None:
    deadlines: list[float] = []
    around_forks(Order.RECORDER, before=deadlines.append)
    around_forks(Order.SESSION, before=deadlines.append)
    began = time.monotonic()
    Notes().around_fork()
    assert deadlines[0] == deadlines[1]
    assert began < deadlines[0] <= time.monotonic() + forks.FORK_WAIT_SECONDS


def test_methods_do_not_keep_their_object_alive() -> None:
    class Living:
        def before(self, deadline: float) -> None:
            calls.append("before")

    calls: list[str] = []
    living = Living()
    around_forks(Order.RECORDER, before=living.before)
    Notes().around_fork()
    del living
    Notes().around_fork()
    assert calls == ["before"]


@pytest.mark.one_python
def test_python_is_asked_to_tell_of_forks_in_one_place() -> None:
    asking = [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "register_at_fork"
    ]
    assert asking == ["support/forks.py"]
