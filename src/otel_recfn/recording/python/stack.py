"""The calling thread's stack as text, for the Python twin."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType

from otel_recfn.recording.limits import MAX_STACK_BYTES

OWN = str(Path(__file__).parents[2]) + os.sep


def python_stack() -> str:
    """One ``file(line): function`` a line, innermost first, without our own frames; whole lines, at most 16 KiB."""
    lines: list[str] = []
    room = MAX_STACK_BYTES
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(OWN):
            line = f"{code.co_filename}({frame.f_lineno}): {code.co_name}"
            room -= len(line.encode("utf-8", "backslashreplace")) + 1
            if room <= 0:
                break
            lines.append(line)
        frame = frame.f_back
    return "\n".join(lines)
