"""Allocations of a start that makes a Chrome trace fail, one or several in a row: no descriptor and no hidden file is left."""

from __future__ import annotations

from collections.abc import Callable

import pytest

START = """
import contextlib
import gc
import logging
import os

logging.disable(logging.CRITICAL)
from failing_allocations import each_failure
from otel_recfn import OtelRecordFunctionInstrumentor
from otel_recfn.sinks.chrome.sink import ChromeTraceSink

os.mkdir("traces")
path = os.path.abspath(sys.argv[2])
instrumentor = OtelRecordFunctionInstrumentor()


def left():
    gc.collect()
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    names = [name for name in os.listdir("traces") if name.startswith(".")]
    return sorted([name for name in found if "/traces/" in name] + names)


def start_sink():
    global sink
    sink = ChromeTraceSink(path)


def stop_sink():
    global sink
    if sink is not None:
        sink.close(5.0)
    sink = None


def start_all():
    instrumentor.instrument(chrome_trace=path)


sink, failed = None, 0
start, stop = (start_sink, stop_sink) if sys.argv[1] == "sink" else (start_all, instrumentor.uninstrument)
start()
stop()
assert not left(), left()
for raised in each_failure(start, fail=int(sys.argv[3])):
    failed += 1
    stop()
    assert not left(), (failed, raised, left())
assert left(), "it was not started at last"
stop()
assert failed > 50, failed
"""


@pytest.mark.one_python
@pytest.mark.parametrize("in_a_row", [1, 4])
@pytest.mark.parametrize(("what", "name"), [("sink", "traces/trace.json.gz"), ("instrumentor", "traces/trace.json")])
def test_nothing_is_left_of_a_start_without_memory(
    run_native: Callable[..., object], what: str, name: str, in_a_row: int
) -> None:
    run_native(START, what, name, str(in_a_row), FAULT_SECONDS="3")
