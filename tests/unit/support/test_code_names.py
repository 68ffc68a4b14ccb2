"""Names of calls say what was called."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_recfn.support.code_names import CalledCode, called_code, python_call_name


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
