"""Where what a range was left by was raised: in its row, and nothing is kept alive for it."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recording_helpers import Capture, Worker, reset
from test_limits import LONG_TEXTS, TEXTS, kept

from otel_recfn._native import LIMITS
from otel_recfn.recording.recorder import Recorder
from thoroughness import examples


def fail(message: str = "no") -> None:
    raise ValueError(message)


def ways(recorder: Recorder) -> dict[str, Callable[[], Any]]:
    """Ranges of every kind, each left by ``fail``."""
    range_ = recorder.record_function

    def with_it() -> None:
        with range_("range"):
            fail()

    @range_("range")
    def function() -> None:
        fail()

    @range_("range")
    def generator() -> Iterator[int]:
        yield 1
        fail()

    async def in_async_with() -> None:
        async with range_("range"):
            fail()

    @range_("range")
    async def coroutine() -> None:
        fail()

    @range_("range")
    async def async_generator() -> AsyncIterator[int]:
        yield 1
        fail()

    async def consume() -> None:
        async for _ in async_generator():
            pass

    return {
        "with": with_it,
        "function": function,
        "generator": lambda: list(generator()),
        "async with": lambda: asyncio.run(in_async_with()),
        "coroutine": lambda: asyncio.run(coroutine()),
        "async generator": lambda: asyncio.run(consume()),
    }


@pytest.mark.parametrize("way", ["with", "function", "generator", "async with", "coroutine", "async generator"])
def test_every_range_says_where(capture: Capture, way: str) -> None:
    with pytest.raises(ValueError, match="no"):
        ways(capture.recorder)[way]()
    [row] = capture.finish()
    lines = row.stacktrace.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-2].startswith(f'  File "{__file__}", line ')
    assert lines[-2].endswith("in fail")
    assert lines[-1] == row.error == "ValueError: no"


def test_the_ranges_around_it_say_their_part_of_the_way(capture: Capture) -> None:
    with pytest.raises(ValueError, match="no"), capture.recorder.record_function("outer"):  # noqa: SIM117 - two ranges
        with capture.recorder.record_function("inner"):
            fail()
    inner, outer = capture.finish()
    assert inner.stacktrace == outer.stacktrace != ""


@examples(30)
@given(text=TEXTS | LONG_TEXTS, stacktrace=TEXTS | st.builds(lambda text: text * 9, LONG_TEXTS))
def test_what_is_kept_of_it(recorder: Recorder, workers: list[Worker], text: str, stacktrace: str) -> None:
    reset(recorder)
    capture = Capture(recorder)
    recorder.end(capture.begin("here"), text, stacktrace=stacktrace)
    there = capture.begin("there")
    workers[0].call(lambda: recorder.end(there, text, stacktrace=stacktrace))
    here_row, there_row = capture.finish()
    assert here_row.stacktrace == (kept(stacktrace, LIMITS["MAX_STACKTRACE_BYTES"]) if text else "")
    assert there_row.stacktrace == ""


def test_nothing_that_the_frames_held_lives_longer(capture: Capture) -> None:
    class Held:
        pass

    def hold() -> weakref.ref[Held]:
        held = Held()
        reference = weakref.ref(held)
        try:
            with capture.recorder.record_function("holds"):
                fail()
        except ValueError:
            pass
        return reference

    assert hold()() is None
    assert [row.name for row in capture.finish()] == ["holds"]
