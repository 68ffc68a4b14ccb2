"""Where nothing can be recorded: there is no native part, or CPython is free-threaded."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from helpers.timeouts import PATIENCE_S
from otel_recfn.errors import RecorderUnavailable
from otel_recfn.support import native_part


@pytest.fixture
def note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What setup.py would have noted, where the native part is missing."""
    monkeypatch.setitem(sys.modules, "otel_recfn._native", None)
    monkeypatch.setattr(native_part, "BUILD_NOTE", tmp_path / "native_build.json")
    return native_part.BUILD_NOTE


@pytest.mark.parametrize(
    ("noted", "message"),
    [
        (
            '{"built": false, "reason": "CompileError: no g++"}',
            r"CompileError: no g\+\+.*apt-get install g\+\+",
        ),
        ('{"built": true, "reason": ""}', "_native"),
        ("not json", "_native"),
        ("", "_native"),
    ],
)
def test_why_it_is_missing_is_told(note: Path, noted: str, message: str) -> None:
    if noted:
        note.write_text(noted)
    with pytest.raises(RecorderUnavailable, match=message):
        native_part.native_part()


REFUSED = "otel-recfn needs a GIL, and this CPython is free-threaded"


RAISES = """
try:
    {}
except otel_recfn.errors.RecorderUnavailable as error:
    print(error)
"""


def run_without_native(program: str) -> tuple[str, str]:
    """What a program says in such a CPython: as its output, and in the log."""
    start = "import sys; sys.abiflags = 't'; import otel_recfn, otel_recfn.errors\n"
    command = [sys.executable, "-c", start + program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_the_flag_says_what_cpython_was_built_as() -> None:
    assert ("t" in sys.abiflags) == bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


@pytest.mark.parametrize(
    "start", ["otel_recfn.OtelRecordFunctionInstrumentor().instrument()", "otel_recfn.profile()"]
)
def test_recording_is_refused_in_one_line(start: str) -> None:
    output, log = run_without_native(RAISES.format(start))
    assert output.startswith(REFUSED)
    assert len(output.splitlines()) == 1
    assert log == ""


def test_ranges_run_and_record_nothing() -> None:
    program = """
with otel_recfn.record_function("range"):
    print(otel_recfn.record_function("function")(lambda: 1)())
"""
    assert run_without_native(program) == ("1\n", "")
