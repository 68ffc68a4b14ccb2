"""Profiles a block of code into a trace file.

Source: ``RecordProfile`` in torch/csrc/autograd/profiler_legacy.cpp.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
from collections.abc import Sequence
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from otel_recfn.legacy.chrome_writer import write_profiler_events_to_stream
from otel_recfn.legacy.config import ProfilerConfig, ProfilerState
from otel_recfn.legacy.event import LegacyEvent
from otel_recfn.legacy.profiler import disable_profiler_legacy, enable_profiler_legacy
from otel_recfn.sinks.files.growing_file import GrowingFile

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger("otel_recfn")

PIECE_BYTES = 1 << 20


class RecordProfile:
    """Profiles from its making to ``close``, in one thread, or until it is dropped; then open the file in chrome://tracing.

        with RecordProfile("steps.trace"):
            model(x)

    Args:
        out: a path, or a text stream, which stays open. An existing file is replaced by the whole trace and keeps its
            permissions; a new one is for this user alone.

    Raises:
        ProfilerError: a profiler runs in this thread.
        OSError: the file can't be made, or is none that may be replaced.
    """

    def __init__(self, out: str | os.PathLike[str] | TextIO) -> None:
        enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU))
        self._running = False
        self._pid, self._thread = os.getpid(), threading.get_ident()
        self._file: GrowingFile | None = None
        self._out: TextIO
        if isinstance(out, str | os.PathLike):
            self._file = self._made(out)
        else:
            self._out = out
        self._running = True

    def close(self) -> None:
        """Stop and write the trace. Never raises: what goes wrong is logged."""
        if not self._running:
            return
        self._running = False
        try:
            self._write()
        except Exception:
            log.exception("the profile could not be written")

    def __del__(self) -> None:
        # As in PyTorch, one that nobody can close any more ends here, and writes.
        if getattr(self, "_running", False) and not sys.is_finalizing():
            if threading.get_ident() == self._thread:
                self.close()
            else:
                log.warning("a RecordProfile was dropped in another thread than it profiles: close it there")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def _made(self, path: str | os.PathLike[str]) -> GrowingFile:
        try:
            return GrowingFile(path)
        except BaseException:
            disable_profiler_legacy()
            raise

    def _write(self) -> None:
        if os.getpid() != self._pid:  # a forked child leaves the file to its parent
            if self._file is not None:
                self._file.close_in_child()
            disable_profiler_legacy()
            return
        try:
            events = list(chain.from_iterable(disable_profiler_legacy()))
            if self._file is None:
                write_profiler_events_to_stream(self._out, events)
            else:
                _fill(self._file, events)
        finally:
            if self._file is not None:
                self._file.close()


def _fill(file: GrowingFile, events: Sequence[LegacyEvent]) -> None:
    with io.TextIOWrapper(io.BufferedWriter(_Appending(file), PIECE_BYTES), encoding="utf-8", newline="") as out:
        write_profiler_events_to_stream(out, events)
    file.show(b"")


class _Appending(io.RawIOBase):
    """A file to write to, for io's buffers."""

    def __init__(self, file: GrowingFile) -> None:
        super().__init__()
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._file.append(data)
        return len(data)
