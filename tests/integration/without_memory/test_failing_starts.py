"""Allocations of a start that makes a Chrome trace, or of one of its files, fail: no descriptor and no hidden file is left."""

from __future__ import annotations

from collections.abc import Callable

import pytest

START = """
import contextlib
import gc
import logging
import os

logging.disable(logging.CRITICAL)
from failing_allocations import COARSE, each_failure
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
for raised in each_failure(start, fail=int(sys.argv[3]), fineness=COARSE):
    failed += 1
    stop()
    assert not left(), (failed, raised, left())
assert left(), "it was not started at last"
stop()
assert failed > 50, failed
"""

SECOND_TIME = """
import os
from pathlib import Path

from failing_allocations import with_failures
from otel_recfn.sinks.files.file_copy import Copy

os.mkdir("traces")
copy, (NONE_FAILED, FAILED, LEFT, OTHER) = None, range(4)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def start():
    global copy
    copy = Copy(Path("traces/trace.json"))


def stop():
    global copy
    if copy is not None:
        copy.remove()
    copy = None


def in_a_child(succeed):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = OTHER
    try:
        before = descriptors()
        failed = with_failures(start, succeed)[1]
        stop()
        code = LEFT if os.listdir("traces") or descriptors() > before else FAILED if failed else NONE_FAILED
    finally:
        os._exit(code)


start()
stop()
succeed = 0
while (code := in_a_child(succeed)) == FAILED:
    succeed += 1
assert code == NONE_FAILED, (succeed, code)
assert succeed > 50, succeed
"""
"""Each child begins with code that has run once: CPython needs memory in places where it needs none when it has run often."""


@pytest.mark.one_python
@pytest.mark.parametrize("in_a_row", [1, 4])
@pytest.mark.parametrize(("what", "name"), [("sink", "traces/trace.json.gz"), ("instrumentor", "traces/trace.json")])
def test_nothing_is_left_of_a_start_without_memory(
    run_failing: Callable[..., object], what: str, name: str, in_a_row: int
) -> None:
    run_failing(START, what, name, str(in_a_row))


@pytest.mark.one_python
def test_nothing_is_left_of_a_file_that_is_made_the_second_time(run_failing: Callable[..., object]) -> None:
    run_failing(SECOND_TIME)
