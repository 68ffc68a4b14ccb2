"""Other profilers that come and go while calls are traced, with each tracer: they are left in
place, and that is told.
"""

from __future__ import annotations

import cProfile
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import CodeType
from typing import Any

import pytest

from helpers.calling_program import Traced, by_end, short, tree
from helpers.recording_helpers import check_laws
from helpers.timeouts import PATIENCE_S
from otel_recfn.model.events import EventFlag

TOLD = "another profiler is or was active"


@pytest.fixture
def may_coexist() -> bool:
    """Whether another profile function and the tracer can be active at the same time."""
    return hasattr(sys, "monitoring")


def leaf() -> None:
    pass


def meanwhile() -> None:
    pass


def later() -> None:
    pass


def others(frame: object, event: str, argument: object) -> None:
    pass


def by_setprofile() -> None:
    sys.setprofile(others)
    meanwhile()
    sys.setprofile(None)


def by_cprofile() -> None:
    profiler = cProfile.Profile()
    profiler.enable()
    meanwhile()
    profiler.disable()


def by_taking_away() -> None:
    sys.setprofile(None)
    meanwhile()


COMING_AND_GOING = [by_setprofile, by_cprofile, by_taking_away]


@pytest.mark.parametrize("comes_and_goes", COMING_AND_GOING)
def test_one_that_comes_and_goes_is_told_and_the_tracer_comes_back(
    traced: Traced,
    comes_and_goes: Callable[[], None],
    may_coexist: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    running = traced.begin()
    leaf()
    for _ in range(2):
        comes_and_goes()
        assert running.session.flush(running.capture, PATIENCE_S)
    later()
    running.stop()
    assert sys.getprofile() is None
    rows = list(running.sink.events())
    assert [len(tree(rows, name)) for name in ("leaf", "meanwhile", "later")] == [
        1,
        2 * may_coexist,
        1,
    ]
    assert [record.levelno for record in caplog.records if TOLD in record.message] == [
        logging.WARNING
    ] * (not may_coexist)
    check_laws(by_end(rows))


@pytest.mark.parametrize("came", ["before", "after"])
def test_one_that_stays_is_told_and_left_in_place(
    traced: Traced, may_coexist: bool, came: str, caplog: pytest.LogCaptureFixture
) -> None:
    try:
        if came == "before":
            sys.setprofile(others)
        running = traced.begin()
        leaf()
        sys.setprofile(others)
        running.stop()
        assert sys.getprofile() is others
    finally:
        sys.setprofile(None)
    assert len([record for record in caplog.records if TOLD in record.message]) == (not may_coexist)
    assert len(tree(list(running.sink.events()), "leaf")) == (may_coexist or came == "after")


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="no sys.monitoring here")
@pytest.mark.parametrize("way", ["events", "place", "taken"])
def test_a_tool_of_the_program_in_our_place_is_left_there(traced: Traced, way: str) -> None:
    monitoring: Any = sys.monitoring
    before = {tool for tool in (3, 4) if monitoring.get_tool(tool)}
    running = traced.begin()
    leaf()
    used = [tool for tool in (3, 4) if monitoring.get_tool(tool) and tool not in before]
    for tool in used:
        monitoring.set_events(tool, 0)
        if way != "events":
            monitoring.free_tool_id(tool)
        if way == "taken":
            monitoring.use_tool_id(tool, "another's")
    running.stop()
    assert [monitoring.get_tool(tool) for tool in used] == [
        "another's" if way == "taken" else None for _ in used
    ]
    assert len(tree(list(running.sink.events()), "leaf")) == 1
    for tool in used:
        if monitoring.get_tool(tool):
            monitoring.free_tool_id(tool)


def refused() -> None:
    pass


def refused_in_c() -> None:
    list(map(refused_by_number, range(1)))


def refused_by_number(number: int) -> None:
    pass


def refused_generator() -> Iterator[int]:
    yield 1
    yield 2


def refused_in_generator() -> None:
    list(refused_generator())


class Refused(Exception):
    """What the callback of another tool raises."""


@contextmanager
def refusing(tool: int, event: str) -> Iterator[None]:
    """Another tool, whose callback raises at this event of functions above."""
    monitoring: Any = sys.monitoring
    number = getattr(monitoring.events, event)

    def refuse(code: CodeType, *_: object) -> None:
        if code.co_filename == __file__ and code.co_name in REFUSED:
            raise Refused

    monitoring.use_tool_id(tool, "another's")
    monitoring.register_callback(tool, number, refuse)
    monitoring.set_events(tool, number)
    try:
        yield
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)


REFUSED = ("refused", "refused_by_number", "refused_generator")
PROGRAMS = [refused, refused_in_c, refused_in_generator]


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="no sys.monitoring here")
@pytest.mark.parametrize("tool", [0, 5])
@pytest.mark.parametrize("event", ["PY_START", "PY_RESUME", "PY_THROW", "PY_RETURN", "PY_YIELD"])
@pytest.mark.parametrize("refused_call", PROGRAMS)
def test_a_tool_whose_callback_raises_ends_no_call_around(
    traced: Traced, tool: int, event: str, refused_call: Callable[[], None]
) -> None:
    def program() -> None:
        for _ in range(3):
            with suppress(Refused):
                refused_call()
        leaf()

    def around() -> None:
        program()
        later()

    with refusing(tool, event):
        rows = traced.run(around)
    by_id = {row.event_id: row for row in rows}
    parent_names = {
        short(row): short(by_id[row.parent])
        for row in rows
        if short(row) in ("leaf", "program", "later")
    }
    assert parent_names == {"leaf": "program", "program": "around", "later": "around"}
    assert not [
        short(row)
        for row in rows
        if row.flags & EventFlag.PARTIAL and short(row) in (*REFUSED, "program", "around")
    ]
    check_laws(by_end(rows))
