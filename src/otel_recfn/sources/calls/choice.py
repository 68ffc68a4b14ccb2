"""The tracer of Python calls."""

from __future__ import annotations

from otel_recfn.recording.recorder import Recorder
from otel_recfn.sources.calls.native_tracer import NativeTracer
from otel_recfn.sources.calls.protocol import CallTracer


def call_tracer(recorder: Recorder) -> CallTracer:
    """The tracer whose ranges go to that recorder."""
    return NativeTracer()
