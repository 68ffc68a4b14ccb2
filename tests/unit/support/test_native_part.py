"""Where nothing can be recorded: there is no native part, or CPython is free-threaded."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from otel_recfn.errors import RecorderUnavailable
from otel_recfn.support import native_part
from patience import PATIENCE_S


@pytest.fixture
def note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What setup.py would have noted, where the native part is missing."""
    monkeypatch.setitem(sys.modules, "otel_recfn._native", None)
    monkeypatch.setattr(native_part, "BUILD_NOTE", tmp_path / "native_build.json")
    return native_part.BUILD_NOTE


def test_what_failed_when_it_was_built_is_told(note: Path) -> None:
    note.write_text(json.dumps({"built": False, "reason": "CompileError: no g++"}))
    with pytest.raises(RecorderUnavailable, match=r"CompileError: no g\+\+.*apt-get install g\+\+"):
        native_part.native_part()


@pytest.mark.parametrize("noted", [None, "not json", '{"built": true, "reason": ""}'])
def test_without_a_note_the_import_says_why(note: Path, noted: str | None) -> None:
    if noted is not None:
        note.write_text(noted)
    with pytest.raises(RecorderUnavailable, match="_native"):
        native_part.native_part()


REFUSED = "otel-recfn needs a GIL, and this CPython is free-threaded"


RAISES = """
try:
    {}
except otel_recfn.errors.RecorderUnavailable as error:
    print(error)
"""


def said(program: str) -> tuple[str, str]:
    """What a program says in such a CPython: as its output, and in the log."""
    start = "import sys; sys.abiflags = 't'; import otel_recfn, otel_recfn.errors\n"
    command = [sys.executable, "-c", start + program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_the_flag_says_what_cpython_was_built_as() -> None:
    assert ("t" in sys.abiflags) == bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


@pytest.mark.parametrize("start", ["otel_recfn.OtelRecordFunctionInstrumentor().instrument()", "otel_recfn.profile()"])
def test_recording_is_refused_in_one_line(start: str) -> None:
    output, log = said(RAISES.format(start))
    assert output.startswith(REFUSED)
    assert len(output.splitlines()) == 1
    assert log == ""


def test_ranges_run_and_record_nothing() -> None:
    program = """
with otel_recfn.record_function("range"):
    print(otel_recfn.record_function("function")(lambda: 1)())
"""
    assert said(program) == ("1\n", "")
