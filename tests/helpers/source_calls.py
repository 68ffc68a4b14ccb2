"""The functions that a source of ranges calls while it is enabled (``sources/protocol.py``).

Tests of the recorder are written against these. They are native, and here is the one place that
says so: a test that imports ``_native`` itself needs something that no source has.
"""

from otel_recfn._native import begin, current_thread_id, end, mark, memory, recording, set_profiler

__all__ = ["begin", "current_thread_id", "end", "mark", "memory", "recording", "set_profiler"]
