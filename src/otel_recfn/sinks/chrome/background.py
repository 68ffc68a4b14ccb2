"""The Chrome trace on a thread of its own, behind a bounded queue: a slow disk holds up neither the drain nor other sinks."""

from __future__ import annotations

from otel_recfn.model.columns import ROW_BYTES
from otel_recfn.sinks.background import BackgroundSink
from otel_recfn.sinks.chrome.sink import ChromeTraceSink

ROWS_OF_A_BATCH = 64
"""The memory that a batch takes beside its rows, in rows."""
CLOSE_SHARE = 0.5
"""Of the time for the end. A disk that hangs leaves as much for the spans' backend, and closing it may take as long."""


class TraceFileWriter:
    """A trace file that is made at once, its sink, and the thread between them.

    Args:
        path: as of ``ChromeTraceSink``.
        queue_bytes: bound of what waits for the file.
    """

    def __init__(self, path: str, queue_bytes: int) -> None:
        self._file = ChromeTraceSink(path, create_now=False, of_process=True)
        self.sink = BackgroundSink(
            self._file,
            max(1, queue_bytes // ROW_BYTES),
            start=False,
            rows_of_a_batch=ROWS_OF_A_BATCH,
            close_share=CLOSE_SHARE,
        )

    def create(self) -> None:
        """Make the file, as ``ChromeTraceSink.create``."""
        self._file.create()
