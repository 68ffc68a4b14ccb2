"""The calling thread's stack as text, for the Python twin."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType

MAX_FRAMES = 64
MAX_BYTES = 4096
OWN = str(Path(__file__).parents[1]) + os.sep


def python_stack() -> str:
    """One ``file(line): function`` a line, innermost first, without our own frames; whole lines, at most 4 KiB."""
    lines: list[str] = []
    room = MAX_BYTES
    frame: FrameType | None = sys._getframe(1)
    for _ in range(MAX_FRAMES):
        if frame is None:
            break
        code = frame.f_code
        line = f"{code.co_filename}({frame.f_lineno}): {code.co_name}"
        size = len(line.encode("utf-8", "backslashreplace")) + 1
        if not code.co_filename.startswith(OWN) and size < room:
            lines.append(line)
            room -= size
        frame = frame.f_back
    return "\n".join(lines)
