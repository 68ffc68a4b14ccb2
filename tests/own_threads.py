"""The threads that background sinks have, found by their names."""

from __future__ import annotations

import threading

from otel_recfn.sinks.background import BackgroundSink
from patience import PATIENCE_S


def threads_of(sink: BackgroundSink) -> list[threading.Thread]:
    """The living threads of sinks called as this one."""
    return [thread for thread in threading.enumerate() if thread.name == f"otel-recfn {sink.name}"]


def wait_for_thread(sink: BackgroundSink) -> None:
    """Until it has ended."""
    for thread in threads_of(sink):
        thread.join(PATIENCE_S)
