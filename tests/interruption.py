"""A signal handler that runs at the Nth line of ours, as a tracer calls it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import otel_recfn
from cleanup_lines import lines_that_clean_up

OURS = str(Path(otel_recfn.__file__).parent)
Tracer = Callable[[FrameType, str, Any], Any]


class Interruption:
    """Calls the handler before the line with this number, counting the lines of ours that this thread runs.

    Args:
        line: the number.
        handler: is called once.
        raises: whether it raises.
        counts: whether the lines of a function count; by default where it is ours, or threading's.
    """

    def __init__(
        self,
        line: int,
        handler: Callable[[], None],
        *,
        raises: bool = False,
        counts: Callable[[CodeType], bool] | None = None,
    ) -> None:
        self._line_number, self._handler, self._raises, self._counts = line, handler, raises, counts or self._is_ours
        self._files: dict[str, bool] = {}
        self.lines = 0
        """So many were run."""
        self.place = ""
        """Where it was called."""

    def __enter__(self) -> Interruption:
        sys.settrace(self._tracer(self._line_tracer()))
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _is_ours(self, code: CodeType) -> bool:
        file = code.co_filename
        if file not in self._files:
            in_threading = file == threading.__file__ and not self._raises  # its conditions wait for themselves
            self._files[file] = file.startswith(OURS) or in_threading
        return self._files[file]

    def _tracer(self, line_tracer: Tracer) -> Tracer:
        counts = self._counts

        def called(frame: FrameType, _event: str, _arg: Any) -> Any:
            return line_tracer if counts(frame.f_code) else None

        return called

    def _line_tracer(self) -> Tracer:
        """It is called millions of times, so it looks up little."""
        cleaning, last = self._raises, self._line_number

        def line(frame: FrameType, event: str, _arg: Any) -> Any:
            if event == "line" and not (cleaning and frame.f_lineno in lines_that_clean_up(frame.f_code.co_filename)):
                self.lines += 1
                if self.lines == last:
                    self._interrupt(frame)
            return line

        return line

    def _interrupt(self, frame: FrameType) -> None:
        self.place = f"{frame.f_code.co_filename.removeprefix(OURS)}:{frame.f_lineno}"
        self._handler()
        sys.settrace(None)  # what follows need not be slow
