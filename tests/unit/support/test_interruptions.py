"""Signal handlers interrupt whatever of ours runs: what they raise reaches the program."""

from __future__ import annotations

import _thread
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from unittest.mock import Mock

import pytest

from helpers.timeouts import PATIENCE_S
from otel_recfn.support.interruptions import raised_by_signal_handler

INTERRUPTED_READER = """
import os
import signal
from otel_recfn import _native
from otel_recfn.recording.recorder import recorder
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
recorder.start(1023, 1 << 16)

def read():
    _native.context_attached(object())
    signal.raise_signal(signal.SIGINT)

recorder.set_context_reader(read)
seen = 0
for _ in range(100):
    try:
        with _native.record_function("range"):
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


def in_a_loop() -> None:
    _thread.interrupt_main()  # as Ctrl-C does: the signal comes when Python looks for it
    while True:
        pass


def in_a_function_written_in_c() -> None:
    signal.raise_signal(signal.SIGINT)


def and_raised_again() -> None:
    try:
        in_a_loop()
    except KeyboardInterrupt as error:
        raise error


@pytest.mark.parametrize("interrupted", [in_a_loop, in_a_function_written_in_c, and_raised_again])
def test_ctrl_c_is_a_handlers(interrupted: Callable[[], None]) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt) as raised:
            interrupted()
        assert raised_by_signal_handler(raised.value)
    finally:
        signal.signal(signal.SIGINT, before)


def by_a_class() -> None:
    raise KeyboardInterrupt


def from_another_error() -> None:
    try:
        _ = 1 / 0
    except ZeroDivisionError as error:
        raise KeyboardInterrupt("stop") from error


@pytest.mark.parametrize(
    "raising", [by_a_class, from_another_error, Mock(side_effect=KeyboardInterrupt)]
)
def test_a_keyboard_interrupt_that_somebody_raises_is_no_handlers(
    raising: Callable[[], None],
) -> None:
    with pytest.raises(KeyboardInterrupt) as raised:
        raising()
    assert not raised_by_signal_handler(raised.value)


def test_an_exception_of_our_own_is_not_a_handlers() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        _ = 1 / 0
    assert not raised_by_signal_handler(raised.value)


def test_a_keyboard_interrupt_during_the_look_at_the_context_is_not_lost() -> None:
    program = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_READER],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert program.stdout == "100\n"


@pytest.mark.parametrize("interrupted", ["read", "_visible_context"])
def test_a_timeout_during_the_look_at_the_context_is_not_lost(interrupted: str) -> None:
    source = f"NAME = {interrupted!r}\n{TIMEOUT_IN_CONTEXT}"
    program = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert (program.stdout, program.stderr) == ("20\n", "")
