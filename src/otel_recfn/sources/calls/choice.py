"""Takes the native tracer with the native recorder, else Python's."""

from __future__ import annotations

from otel_recfn.recording.protocol import Recorder
from otel_recfn.sources.calls.protocol import CallTracer
from otel_recfn.sources.calls.python_tracer import PythonTracer


def call_tracer(recorder: Recorder) -> CallTracer:
    """The tracer whose ranges go to that recorder."""
    try:
        from otel_recfn.recording.native_recorder import NativeRecorder
        from otel_recfn.sources.calls.native_tracer import NativeTracer
    except ImportError:  # no compiler where this was installed
        return PythonTracer(recorder)
    return NativeTracer() if isinstance(recorder, NativeRecorder) else PythonTracer(recorder)
