"""Names of calls, exceptions and their stack traces, endpoints, texts of somebody else's; shapes
and dtypes as lists.
"""

from __future__ import annotations

import json
import subprocess
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_recfn.support import texts
from otel_recfn.support.texts import (
    MAX_BYTES,
    MAX_CHARACTERS,
    MAX_FRAMES,
    MAX_SHOWN_NAMES,
    CalledCode,
    called_code,
    element_texts,
    error_text,
    failure,
    flat_shapes,
    is_failure,
    python_call_name,
    safe_text,
    secrets_of,
)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("model.py(12): forward", CalledCode("forward", "model.py", 12)),
        ("odd(3): name.py(12): <lambda>", CalledCode("<lambda>", "odd(3): name.py", 12)),
        ("(0): <module>", CalledCode("<module>", "", 0)),
        ("<built-in function len>", CalledCode("<built-in function len>")),
        ("nn.Module: Linear_0", CalledCode("nn.Module: Linear_0")),
        ("", CalledCode("")),
    ],
)
def test_what_a_name_says(name: str, code: CalledCode) -> None:
    assert called_code(name) == code


@given(st.text(), st.integers(0, 1 << 40), st.from_regex(r"[\w<>.]*", fullmatch=True))
def test_what_was_said_comes_back(file: str, line: int, function: str) -> None:
    assert called_code(python_call_name(file, line, function)) == CalledCode(function, file, line)


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


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("http://user:password@host:4317/v1/traces?key=secret#part", "http://host:4317/v1/traces"),
        ("user:password@host:4317", "host:4317"),
        ("http://us@er:pa/ss?w@host", "http://host"),
        ("http://user:pass word'@host", "http://host"),
        ("http://u:p@h?k", "http://h"),
        ("http://localhost:4318/v1/traces", "http://localhost:4318/v1/traces"),
        ("localhost:4317", "localhost:4317"),
        ("", ""),
    ],
)
def test_endpoints(endpoint: str, said: str) -> None:
    assert safe_text(endpoint, secrets_of(endpoint)) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("two\r\nlines\x1b[0m", "two lines [0m"),
        ("a \ud800 surrogate", "a surrogate"),
        ("x" * 1000, "x" * (MAX_SHOWN_NAMES - 3) + "..."),
        (None, "None"),
        ("'https://u:p@h/x?k=v' (and http://h/?k)", "'https://h/x (and http://h/"),
    ],
)
def test_texts_of_others(text: object, said: str) -> None:
    assert safe_text(text) == said


def test_a_long_text_is_read_in_time_of_its_length() -> None:
    for long in ("@" * 1_000_000, "http://" * 200_000, "?" * 1_000_000, " a@" * 300_000):
        assert len(safe_text(long)) <= MAX_SHOWN_NAMES


SHAPE = st.lists(st.integers(0, 1 << 40), max_size=4)


@given(st.lists(SHAPE | st.lists(SHAPE, min_size=1, max_size=3), max_size=5))
def test_shapes_are_read_as_they_were_written(shapes: list[list[object]]) -> None:
    text = json.dumps(shapes, separators=(",", ":"))
    assert [json.loads(element) for element in element_texts(text)] == shapes
    flat = [
        tuple(shape) if not any(isinstance(size, list) for size in shape) else ()
        for shape in shapes
    ]
    assert list(flat_shapes(text)) == flat


@pytest.mark.parametrize("text", ["", "not JSON", "7", '"text"', "{}"])
def test_what_is_no_list_is_one_text_and_no_shapes(text: str) -> None:
    assert element_texts(text) == (text,)
    assert flat_shapes(text) == ()


def test_a_text_is_parsed_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    loads = json.loads
    monkeypatch.setattr(texts.json, "loads", lambda text: (parsed.append(text), loads(text))[1])
    for _ in range(3):
        assert element_texts("[[2,3],[71]]") == ("[2, 3]", "[71]")
        assert flat_shapes("[[2,3],[71]]") == ((2, 3), (71,))
    assert parsed == ["[[2,3],[71]]"]
