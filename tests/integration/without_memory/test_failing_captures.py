"""Every single allocation of a capture's start and end fails once: it starts or raises, always ends, and leaves nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

CAPTURES = """
import contextlib
import logging
import os
import sys
import threading
import time

logging.disable(logging.CRITICAL)

from failing_allocations import COARSE, each_failure, keep_code_of_others
from opentelemetry import context
from otel_recfn import InMemorySink, OtelRecordFunctionInstrumentor, profile, record_function
from otel_recfn.recording.recorder import recorder

WRAPPED = [(context._RUNTIME_CONTEXT, name) for name in ("attach", "detach", "get_current")]
PATIENCE_S = 60
names = []


class Instrumentor(OtelRecordFunctionInstrumentor):  # importlib's look at torch's metadata would be most of it
    def instrumentation_dependencies(self):
        return ()


class Profile:
    def start(self):
        self.prof = None
        self.prof = profile()
        self.prof.start()

    def stop(self):
        if self.prof is not None:
            self.prof.stop()

    def names(self):
        return [event.name for event in self.prof.events()]

    def counters(self):
        return self.prof.counters()


class Instrument:
    def __init__(self):
        self.instrumentor = Instrumentor()

    def start(self):
        self.sink = InMemorySink()
        self.instrumentor.instrument(sinks=[self.sink])
        if not self.instrumentor.is_instrumented_by_opentelemetry:
            raise MemoryError

    def stop(self):
        if self.instrumentor.is_instrumented_by_opentelemetry:
            self.instrumentor.uninstrument()

    def names(self):
        return [event.name for event in self.sink.events()]

    def counters(self):
        counters = self.instrumentor.counters()
        return {name: count for name, count in counters.items() if name.startswith(("recorder.", "in_memory."))}


def lost():
    losses = ("dropped", "lost_ends", "lost_in_drain", "missed")
    return sum([count for name, count in capture.counters().items() if name.rpartition(".")[2] in losses])


def ours():
    return [thread for thread in threading.enumerate() if "recfn" in thread.name and thread.is_alive()]


def open_files():
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return found


def check_that_nothing_is_left(beside):
    assert recorder.recording == beside
    assert beside or [getattr(*wrapped) for wrapped in WRAPPED] == plain
    until = time.monotonic() + PATIENCE_S
    # A thread that Python lost count of while it began ends with a traceback, for which Python opens the source for a moment.
    while len(ours()) > beside or len(open_files()) != descriptors:
        assert time.monotonic() < until, (threading.enumerate(), open_files(), descriptors)
        time.sleep(0.001)


def check_the_next_one():
    for one in (Profile(), Instrument()):
        one.start()
        with record_function("after it"):
            pass
        one.stop()
        names.append(one.names())


def check_the_next_ones():
    # In another thread: it would wait for a lock that was left taken.
    names.clear()
    thread = threading.Thread(target=check_the_next_one, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert names == [["after it"], ["after it"]], names


plain = [getattr(*wrapped) for wrapped in WRAPPED]
def in_it():
    with record_function("in it"):
        pass


def starts():
    for raised in each_failure(capture.start, fail, fineness=COARSE):
        assert raised is None or isinstance(raised, MemoryError), repr(raised)
        if raised is None:
            in_it()
        capture.stop()
        assert raised is not None or capture.names() == ["in it"], capture.names()
        yield raised is not None
    capture.stop()


def stops():
    capture.start()
    in_it()
    before = lost()
    for raised in each_failure(capture.stop, fail, fineness=COARSE):
        assert raised is None, repr(raised)
        assert len(capture.names()) + lost() - before == 1, (capture.names(), before, capture.counters())
        yield capture.names() == ["in it"]
        capture.start()
        in_it()
        before = lost()


capture = {"profile": Profile, "instrument": Instrument}[sys.argv[1]]()
fail, beside = int(sys.argv[2]), sys.argv[3] == "beside"
capture.start()
capture.stop()
check_the_next_ones()
keep_code_of_others()
descriptors = len(open_files())
standing = profile()
if beside:
    standing.start()
count = 0
for failing in (starts, stops):
    notable = 0
    for was_notable in failing():
        count += 1
        notable += was_notable
        check_that_nothing_is_left(beside)
        check_the_next_ones()
    assert notable > 15, (failing, notable)
if beside:
    standing.stop()
    found = [event.name for event in standing.events()]
    assert found.count("after it") == 2 * count, (found.count("after it"), count)
    check_that_nothing_is_left(False)
"""


@pytest.mark.parametrize(
    ("capture", "beside", "fail"), [("profile", "beside", 1), ("profile", "alone", 5), ("instrument", "alone", 1)]
)
def test_a_capture_without_memory_starts_or_raises_and_always_ends(
    run_failing: Callable[..., object], capture: str, beside: str, fail: int
) -> None:
    run_failing(CAPTURES, capture, str(fail), beside)
