"""Memory that runs out while what was recorded is drained: what there is no memory for waits, and all of it comes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

PROGRAM = """
import logging
import resource

logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
from otel_recfn import OtelRecordFunctionInstrumentor, profile, record_function
from otel_recfn.sinks.in_memory import InMemorySink

instrumentor = OtelRecordFunctionInstrumentor()
sink = InMemorySink(1_000_000)
instrumentor.instrument(sinks=[sink])
with record_function("before"):
    pass
assert instrumentor.flush(300)
with open("/proc/self/statm") as sizes:
    taken = int(sizes.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (8 << 20), resource.RLIM_INFINITY))
for _ in range(400_000):
    with record_function("much"):
        pass
instrumentor.flush(300)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for _ in range(3):
    with record_function("after"):
        pass
    instrumentor.flush(300)
rows = sink.store.rows()  # as columns: an Event of each takes longer than all else
print([name for name in map(rows.names.__getitem__, rows.name.tolist()) if name != "much"])
instrumentor.uninstrument()
counters = instrumentor.counters()
lost = counters["recorder.dropped"] + counters["recorder.lost_in_drain"]
assert counters["rows"] + lost == 400_004, counters
assert counters["rows"] > 100_000, counters
instrumentor.instrument(sinks=[again := InMemorySink()])
with profile() as prof, record_function("anew"):
    pass
instrumentor.uninstrument()
print([event.name for event in prof.events()], [event.name for event in again.events()])
"""


@pytest.mark.one_python
@pytest.mark.skipif(sys.platform != "linux", reason="the program reads its size from /proc")
def test_the_program_goes_on(run_program: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run_program(PROGRAM)
    assert done.stdout.splitlines() == ["['before', 'after', 'after', 'after']", "['anew'] ['anew']"]
