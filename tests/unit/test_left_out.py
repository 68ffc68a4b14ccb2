"""Which files of tests are not read where marks leave none of their tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from left_out import is_left_out

pytestmark = pytest.mark.one_python

OTHERS = "not torch and not gpu and not one_python"
ONE = "pytestmark = pytest.mark.one_python\n"
WITH_TORCH = 'pytestmark = [pytest.mark.usefixtures("one_python"), pytest.mark.torch]\n'
SOME = "@pytest.mark.one_python\ndef test_it(): ...\n"


@pytest.mark.parametrize(
    ("text", "expression", "left_out"),
    [
        (ONE, OTHERS, True),
        (WITH_TORCH, OTHERS, True),
        (WITH_TORCH, "not one_python", False),
        (SOME, OTHERS, False),
        ("", OTHERS, False),
        (ONE, "", False),
        (ONE, "one_python", False),
        (ONE, "not one_python or torch", False),
        (ONE, "not torch and not gpu", False),
    ],
)
def test_files_of_which_no_test_is_left(tmp_path: Path, text: str, expression: str, left_out: bool) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(f"import pytest\n\n{text}")
    assert is_left_out(file, expression) == left_out
