"""An exception's stack trace: what Python prints, bounded, whatever the exception does."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_recfn.support.failures import MOST_BYTES, MOST_FRAMES, MOST_WALKED, failure

MADE: dict[str, Any] = {}
exec(  # a file that nobody can read, as in what we write there are no lines of source code
    compile(
        """
def raise_here(depth, error, cause, hide):
    if depth:
        return raise_there(depth - 1, error, cause, hide)
    if hide is None:
        raise error
    raise error from (None if hide else cause)

def raise_there(depth, *rest):
    return raise_here(depth, *rest)
""",
        "/nowhere/made.py",
        "exec",
    ),
    MADE,
)


def caught(function: Callable[..., Any], *arguments: Any) -> BaseException:
    try:
        function(*arguments)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def raised_while_handling(errors: list[tuple[str, int, bool | None]], before: BaseException | None = None) -> None:
    """Raises the first while the second is handled, and so on; from it, or hiding it."""
    (text, depth, hide), *others = errors
    earlier = caught(raised_while_handling, others) if others else None
    try:
        if earlier is not None:
            raise earlier
    finally:
        MADE["raise_here"](depth, KeyError(text), earlier, hide)


ERRORS = st.lists(
    st.tuples(st.text(max_size=9), st.integers(0, 4), st.sampled_from([None, True, False])), min_size=1, max_size=4
)


@given(ERRORS)
def test_it_is_what_python_prints(errors: list[tuple[str, int, bool | None]]) -> None:
    error = caught(raised_while_handling, errors)
    printed = [
        line + "\n"
        for line in "".join(traceback.format_exception(error)).splitlines()
        if not line.startswith("    ")  # source code, and marks below it
    ]
    expected = "".join(printed).encode("utf-8", "backslashreplace").decode()
    text, stacktrace = failure(error)
    assert stacktrace.splitlines() == expected.splitlines()
    assert stacktrace.endswith(text + "\n")


def deep(frames: int, error: BaseException) -> None:
    if not frames:
        raise error
    deep(frames - 1, error)


@pytest.mark.parametrize("frames", [10, MOST_FRAMES * 2, 700])
def test_it_is_bounded(frames: int) -> None:
    stacktrace = failure(caught(deep, frames, ValueError("x" * 20_000)))[1]
    lines = stacktrace.splitlines()
    shown = [line for line in lines if line.startswith('  File "')]
    assert len(shown) == min(frames + 2, MOST_FRAMES)
    assert (f"  [{frames + 2 - MOST_FRAMES} more frames]" in lines) == (frames + 2 > MOST_FRAMES)
    assert "in caught" in shown[0]
    assert shown[-1].endswith("in deep")
    assert len(stacktrace.encode()) <= MOST_BYTES
    assert stacktrace.endswith("xxx\n")


def test_of_a_stack_without_end_the_outer_part_is_known() -> None:
    error = ValueError("deep")
    links = None
    for _ in range(MOST_WALKED + 10):
        found = caught(deep, 0, ValueError()).__traceback__
        assert found is not None
        found.tb_next = links
        links = found
    stacktrace = failure(error.with_traceback(links))[1]
    assert "  [frames further in are not shown]\nValueError: deep\n" in stacktrace


def test_long_errors_that_it_came_of_are_left_out_and_the_error_itself_is_there() -> None:
    error: BaseException = ValueError("first")
    for number in range(30):
        following = caught(deep, 20, ValueError(f"error {number} " + "é" * 500))
        following.__cause__ = error
        error = following
    stacktrace = failure(error)[1]
    assert len(stacktrace.encode()) <= MOST_BYTES
    assert "error 29" in stacktrace.splitlines()[-1]
    assert "error 28" in stacktrace
    assert "first" not in stacktrace


class Hostile(Exception):
    """Whatever may be said of an exception raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


def test_no_code_of_the_exceptions_own_is_needed() -> None:
    outer = caught(deep, 1, Hostile())
    try:
        raise ValueError("after") from outer
    except ValueError as error:
        stacktrace = failure(error)[1]
    assert stacktrace.count("<message unavailable: its __str__ failed>") == 1
    assert "in deep" in stacktrace
    assert stacktrace.endswith("ValueError: after\n")


def test_exceptions_that_came_of_each_other_end() -> None:
    first, second = caught(deep, 0, ValueError("first")), caught(deep, 0, ValueError("second"))
    first.__cause__, second.__cause__ = second, first
    assert failure(first)[1].count("ValueError: ") == 2


@pytest.mark.parametrize("error", [None, GeneratorExit()])
def test_nothing_of_what_did_not_fail(error: BaseException | None) -> None:
    assert failure(error) == ("", "")


def test_an_exception_that_was_never_raised_has_its_text_alone() -> None:
    assert failure(ValueError("x")) == ("ValueError: x", "ValueError: x\n")
