"""Signal handlers interrupt whatever of ours runs: what they raise reaches the program, and they may record."""

from __future__ import annotations

import signal
import subprocess
import sys
from functools import partial
from types import FrameType

import pytest

from otel_recfn.support.signal_handlers import raised_by_signal_handler
from patience import PATIENCE_S

INTERRUPTED_READER = """
import os
import signal
from otel_recfn.recording.recorder import recorder
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
recorder.start(1023, 1 << 16)

def read():
    recorder.context_attached(object())
    signal.raise_signal(signal.SIGINT)

recorder.set_context_reader(read)
seen = 0
for _ in range(100):
    try:
        with recorder.record_function("range"):
            pass
        for _ in range(10):
            pass
    except KeyboardInterrupt:
        seen += 1
print(seen)
"""


TIMEOUT_IN_CONTEXT = """
import signal
import sys
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider
from otel_recfn import OtelRecordFunctionInstrumentor, record_function

class TimeIsUp(Exception):
    pass

def handle(_number, _frame):
    raise TimeIsUp

def interrupted(frame, event, arg):
    global left
    if event == "call" and frame.f_code.co_name == NAME and left:
        left = False
        sys.settrace(None)
        signal.raise_signal(signal.SIGALRM)

signal.signal(signal.SIGALRM, handle)
trace.set_tracer_provider(TracerProvider())
OtelRecordFunctionInstrumentor().instrument()
tracer, seen = trace.get_tracer("program"), 0
for _ in range(20):
    left = True
    sys.settrace(interrupted)
    try:
        with tracer.start_as_current_span("span"), record_function("range"):
            context.get_current()
        for _ in range(10):
            pass
    except TimeIsUp:
        seen += 1
print(seen)
"""


PROFILING_HANDLER = """
import signal
from otel_recfn import profile, record_function
from otel_recfn.legacy import ProfilerConfig, ProfilerState, disable_profiler_legacy, enable_profiler_legacy

from otel_recfn.errors import CallRefused

HANDLED, PAUSE_S = 300, 0.002
wrong, handled, profiles = [], 0, 0

def profiled(name):
    with profile() as prof, record_function(name):
        pass
    if [event.name for event in prof.events()].count(name) != 1:
        wrong.append(name)

def handle(_number, _frame):
    global handled, profiles
    handled += 1
    with record_function("range of the handler"):
        pass
    try:
        profiled("in the handler")
        profiles += 1
    except CallRefused:
        pass
    signal.setitimer(signal.ITIMER_REAL, PAUSE_S if handled < HANDLED else 0)

signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, PAUSE_S)
while handled < HANDLED:
    profiled("in the program")
    enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU))
    disable_profiler_legacy()
print(wrong, 0 < profiles < HANDLED)
"""


class TimeIsUp(Exception):
    pass


def handle(_number: int, _frame: FrameType | None) -> None:
    raise TimeIsUp


class Handler:
    def handle(self, number: int, frame: FrameType | None) -> None:
        handle(number, frame)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        raise TimeIsUp


@pytest.mark.parametrize("handler", [handle, Handler().handle, Handler(), partial(handle)])
def test_a_handlers_exception_is_told_from_others(handler: signal.Handlers) -> None:
    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(TimeIsUp) as raised:
            signal.raise_signal(signal.SIGALRM)
        assert raised_by_signal_handler(raised.value)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_an_exception_of_our_own_is_not_a_handlers() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        _ = 1 / 0
    assert not raised_by_signal_handler(raised.value)


def test_a_keyboard_interrupt_during_the_look_at_the_context_is_not_lost() -> None:
    program = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_READER], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert program.stdout == "100\n"


@pytest.mark.parametrize("interrupted", ["_read", "_after_attach", "_after_get_current"])
def test_a_timeout_during_the_look_at_the_context_is_not_lost(interrupted: str) -> None:
    source = f"NAME = {interrupted!r}\n{TIMEOUT_IN_CONTEXT}"
    program = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert (program.stdout, program.stderr) == ("20\n", "")


def test_a_signal_handler_records_and_may_be_refused_a_profile_whatever_it_interrupts() -> None:
    program = subprocess.run(
        [sys.executable, "-c", PROFILING_HANDLER], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert (program.stdout, program.stderr) == ("[] True\n", "")
