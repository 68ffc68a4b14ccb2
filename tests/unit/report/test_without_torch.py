"""A report of files needs neither torch nor the SDK, and says what it needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.timeouts import PATIENCE_S

pytestmark = pytest.mark.one_python

PROGRAM = """
import sys
REFUSED = sys.argv.pop(1)
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "opentelemetry", "wrapt", "grpc") or name == REFUSED:
            raise ImportError(name)
sys.meta_path.insert(0, Refused())
from otel_recfn.cli import main
sys.exit(main(["report", *sys.argv[1:]]))
"""


def reported(directory: Path, refused: str) -> subprocess.CompletedProcess[str]:
    trace = directory / "t.json"
    trace.write_text(json.dumps([{"ph": "X", "name": "a", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]))
    command = [sys.executable, "-c", PROGRAM, refused, str(trace)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)


def test_neither_torch_nor_the_sdk_is_needed(tmp_path: Path) -> None:
    done = reported(tmp_path, "-")
    assert (done.stderr, done.returncode) == ("", 0)
    assert (tmp_path / "t.html").exists()


def test_what_is_missing_is_said_in_a_line(tmp_path: Path) -> None:
    done = reported(tmp_path, "otel_recfn._native")
    assert done.returncode == 2
    assert done.stderr.startswith("otel-recfn report: ")
    assert "Traceback" not in done.stderr
