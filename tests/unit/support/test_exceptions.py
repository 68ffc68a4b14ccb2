"""Texts of exceptions and their stack traces."""

from __future__ import annotations

import subprocess
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_recfn.support.exceptions import (
    MAX_BYTES,
    MAX_CHARACTERS,
    MAX_FRAMES,
    error_text,
    failure,
    is_failure,
)


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (GeneratorExit(), "GeneratorExit"),
        (ValueError("no"), "ValueError: no"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (subprocess.SubprocessError("x"), "subprocess.SubprocessError: x"),
        (KeyError("k"), "KeyError: 'k'"),
        (ValueError("\ud800"), "ValueError: \\ud800"),
        (Hostile(), f"{__name__}.Hostile: <message unavailable: its __str__ failed>"),
    ],
)
def test_error_text(error: BaseException, text: str) -> None:
    assert error_text(error) == text


def test_an_exit_with_a_code_is_a_failure() -> None:
    assert [is_failure(SystemExit(code)) for code in (None, 0, 1, "text")] == [
        False,
        False,
        True,
        True,
    ]


def test_a_long_message_is_cut() -> None:
    assert len(error_text(ValueError("x" * 10_000))) == MAX_CHARACTERS


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


def raised_while_handling(
    errors: list[tuple[str, int, bool | None]], before: BaseException | None = None
) -> None:
    """Raises the first while the second is handled, and so on; from it, or hiding it."""
    (text, depth, hide), *others = errors
    earlier = caught(raised_while_handling, others) if others else None
    try:
        if earlier is not None:
            raise earlier
    finally:
        MADE["raise_here"](depth, KeyError(text), earlier, hide)


ERRORS = st.lists(
    st.tuples(st.text(max_size=9), st.integers(0, 4), st.sampled_from([None, True, False])),
    min_size=1,
    max_size=4,
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


@pytest.mark.parametrize("frames", [10, MAX_FRAMES * 2, 700])
def test_it_is_bounded(frames: int) -> None:
    stacktrace = failure(caught(deep, frames, ValueError("x" * 20_000)))[1]
    lines = stacktrace.splitlines()
    shown = [line for line in lines if line.startswith('  File "')]
    assert len(shown) == min(frames + 2, MAX_FRAMES)
    assert (f"  [{frames + 2 - MAX_FRAMES} more frames]" in lines) == (frames + 2 > MAX_FRAMES)
    assert "in caught" in shown[0]
    assert shown[-1].endswith("in deep")
    assert len(stacktrace.encode()) <= MAX_BYTES
    assert stacktrace.endswith("xxx\n")


class Unspeakable(Exception):
    """Whatever may be said of it raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


def test_what_an_exceptions_own_code_raises_goes_no_further() -> None:
    assert failure(Unspeakable()) == ("Exception", "")
