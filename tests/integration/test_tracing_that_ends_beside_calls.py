"""Tracing of Python calls begins and ends in one thread while others are in the middle of beginning calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from thoroughness import SOAK

pytest.importorskip("otel_recfn._native")

BUSY = """
import contextvars, sys, threading

from otel_recfn import PythonCalls, profile

calls = PythonCalls(call_sites=sys.argv[2] == "with call sites")
over = threading.Event()
named_by_python = compile("def asked(): pass", "/made/torch/nn/modules/module.py", "exec")

def leaf():
    pass

def generated():
    yield leaf()

def busy():
    namespace = {}
    while not over.is_set():
        exec(named_by_python, namespace)
        namespace["asked"]()
        contextvars.Context().run(leaf)  # its span context is read
        list(generated())

threads = [threading.Thread(target=busy) for _ in range(4)]
for thread in threads:
    thread.start()
sys.setswitchinterval(1e-6)
try:
    for _ in range(int(sys.argv[1])):
        with profile(python_calls=calls, max_events=1000):
            pass
finally:
    over.set()
    for thread in threads:
        thread.join()

def outer():
    leaf()

with profile(python_calls=True) as after:
    outer()
by_id = {event.event_id: event for event in after.events()}
[last] = [event for event in by_id.values() if event.name.endswith("): leaf")]
above = by_id[last.parent]
assert above.name.endswith("): outer"), above.name
assert by_id[above.parent].name.endswith("): <module>"), by_id[above.parent].name
"""


@pytest.mark.parametrize("call_sites", ["with call sites", "without"])
def test_threads_that_are_beginning_calls(run_program: Callable[..., Any], call_sites: str) -> None:
    run_program(BUSY, str(60 * SOAK), call_sites)
