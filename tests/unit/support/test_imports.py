"""Who starts and stops recordings takes no lock of an import: a signal handler that interrupts one would wait for itself."""

from __future__ import annotations

import subprocess
import sys

from patience import PATIENCE_S

PROGRAM = """
import sys
from otel_recfn import OtelRecordFunctionInstrumentor, profile, record_function
from otel_recfn.legacy import ProfilerConfig, ProfilerState, disable_profiler_legacy, enable_profiler_legacy

instrumentor, asked = OtelRecordFunctionInstrumentor(), []

def everything():
    instrumentor.instrument()
    with profile() as prof, record_function("range"):
        pass
    assert [event.name for event in prof.events()] == ["range"]
    prof.key_averages().table()
    enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU))
    disable_profiler_legacy()
    assert instrumentor.flush(300)
    instrumentor.uninstrument()

def notice(frame, event, argument):
    if event == "call" and frame.f_code.co_name == "_find_and_load":
        asked.append(frame.f_locals["name"])

everything()
sys.setprofile(notice)
everything()
sys.setprofile(None)
print(asked)
"""


def test_what_was_done_once_asks_for_no_module_again() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout == "[]\n", done.stderr
