"""The frames of all threads, which our sampler reads."""

from __future__ import annotations

import subprocess
import sys

from helpers.timeouts import PATIENCE_S

PROGRAM = """
import gc
import threading

from otel_recfn import _native


class Circle:
    def __init__(self):
        self.itself, self.local = self, threading.local()


def collects_after(allocations):
    gc.disable()
    Circle()
    gc.enable()
    gc.set_threshold(gc.get_count()[0] + allocations)
    frames = _native.current_frames()
    gc.set_threshold(700)
    assert threading.get_ident() in frames


for allocations in range(12):
    collects_after(allocations)
assert gc.isenabled()
gc.disable()
_native.current_frames()
assert not gc.isenabled()
"""


def test_no_garbage_is_collected_while_cpython_holds_the_lock_of_its_threads() -> None:
    """With ``sys._current_frames()`` in its place CPython 3.11 stops for good."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=PATIENCE_S)
