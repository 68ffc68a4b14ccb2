"""Profiles a block of code into a trace file.

Source: ``RecordProfile`` in torch/csrc/autograd/profiler_legacy.cpp.
"""

from __future__ import annotations

import logging
import os
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from otel_recfn.legacy.chrome_writer import write_profiler_events_to_stream
from otel_recfn.legacy.config import ProfilerConfig, ProfilerState
from otel_recfn.legacy.profiler import disable_profiler_legacy, enable_profiler_legacy

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger("otel_recfn")


class RecordProfile:
    """Profiles from its making to ``close``, in one thread; then open the file in chrome://tracing.

        with RecordProfile("steps.trace"):
            model(x)

    Args:
        out: a path, or a text stream, which stays open.

    Raises:
        ProfilerError: a profiler runs in this thread.
        OSError: the file can't be made.
    """

    def __init__(self, out: str | os.PathLike[str] | TextIO) -> None:
        enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU))
        self._running = True
        self._pid = os.getpid()
        self._file: TextIO | None = None
        if isinstance(out, str | os.PathLike):
            self._out = self._file = self._opened(out)
        else:
            self._out = out

    def close(self) -> None:
        """Stop and write the trace. Never raises: what goes wrong is logged."""
        if not self._running:
            return
        self._running = False
        try:
            self._write()
        except Exception:
            log.exception("the profile could not be written")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def _opened(self, path: str | os.PathLike[str]) -> TextIO:
        try:
            return open(path, "w", encoding="utf-8")
        except BaseException:
            disable_profiler_legacy()
            raise

    def _write(self) -> None:
        try:
            events = list(chain.from_iterable(disable_profiler_legacy()))
            if os.getpid() == self._pid:  # a forked child leaves the file to its parent
                write_profiler_events_to_stream(self._out, events)
        finally:
            if self._file is not None:
                self._file.close()
