"""What a drain needs is imported when recording starts: threads of ours must not import, and drain."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import otel_recfn
from patience import PATIENCE_S

PROGRAM = """
import sys
from otel_recfn.model.events import ALL_SCOPES_MASK
from otel_recfn.recording.recorder import recorder

assert "numpy" not in sys.modules
recorder.start(ALL_SCOPES_MASK, 1 << 20)
before = set(sys.modules)
outer = recorder.begin("outer", 7, 1)
recorder.end(recorder.begin("inner", 7, 1), "ValueError: of its own")
recorder.mark("mark")
batch = recorder.drain(close_open=True)
assert [event.name for event in batch.events()] == ["inner", "mark", "outer"] and len(batch.opened) == 1
print(sorted(set(sys.modules) - before))
"""


def test_the_first_drain_imports_nothing() -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(otel_recfn.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
