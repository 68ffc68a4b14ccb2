"""Memory that runs out while what was recorded is drained: the program hears of it once, and goes on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from otel_recfn.recording import backend

PROGRAM = """
import logging
import resource

logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
from otel_recfn import OtelRecordFunctionInstrumentor, record_function
from otel_recfn.sinks.in_memory import InMemorySink

sink = InMemorySink()
instrumentor = OtelRecordFunctionInstrumentor()
instrumentor.instrument(sinks=[sink])
with record_function("before"):
    pass
assert instrumentor.flush()
with open("/proc/self/statm") as sizes:
    taken = int(sizes.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (8 << 20), resource.RLIM_INFINITY))
for _ in range(400_000):
    with record_function("much"):
        pass
instrumentor.flush()
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for _ in range(3):
    with record_function("after"):
        pass
    instrumentor.flush()
print([event.name for event in sink.events() if event.name != "much"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the program reads its size from /proc")
@pytest.mark.skipif(
    backend.choose().kind != "native", reason="the native part is not built: python setup.py build_ext --inplace"
)
def test_the_program_goes_on(run_program: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run_program(PROGRAM)
    errors = [line for line in done.stderr.splitlines() if line.startswith("otel_recfn ERROR")]
    assert len(errors) == 1
    assert "draining failed" in errors[0]
    assert "MemoryError" in done.stderr
    assert done.stdout.strip() == "['before']"
