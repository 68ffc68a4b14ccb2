"""Somebody sets the wall clock while a program runs: durations stay, and what begins later lies where its parents do.

The program runs with a library that shifts what CLOCK_REALTIME says, so that nobody else's clock is touched.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.one_python

SHIFTED = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

long long wall_clock_shift_ns = 0;

int clock_gettime(clockid_t which, struct timespec* now) {
  static int (*real)(clockid_t, struct timespec*);
  if (real == 0) real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  const int result = real(which, now);
  if (result == 0 && which == CLOCK_REALTIME) {
    const long long shifted = now->tv_sec * 1000000000LL + now->tv_nsec + wall_clock_shift_ns;
    now->tv_sec = shifted / 1000000000LL;
    now->tv_nsec = shifted % 1000000000LL;
  }
  return result;
}
"""
PROGRAM = """
import contextvars, ctypes, json, sys, threading, time
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from otel_recfn import OtelRecordFunctionInstrumentor, profile, record_function

shift = ctypes.c_longlong.in_dll(ctypes.CDLL(None), "wall_clock_shift_ns")
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("program")
instrumentor = OtelRecordFunctionInstrumentor()
real = {}

def timed(name, inner=None):
    begin = time.perf_counter_ns()
    with record_function(name):
        if inner is not None:
            inner()
        else:
            time.sleep(0.02)
    real[name] = time.perf_counter_ns() - begin

def set_clock():
    assert instrumentor.flush()
    shift.value += int(float(sys.argv[1]) * 1e9)
    assert instrumentor.flush()

def across():
    timed("inside before")
    set_clock()
    timed("inside after")
    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: context.run(timed, "in a thread after"))
    thread.start()
    thread.join()

instrumentor.instrument(chrome_trace="trace.json")
with profile() as prof:
    with tracer.start_as_current_span("request before"):
        timed("below request before")
    timed("across", across)
    for again in range(3):
        with tracer.start_as_current_span(f"request after {again}"):
            timed(f"below request after {again}")
        timed(f"alone after {again}")
instrumentor.flush()
marks = [event.name for event in prof.events() if event.kind.name == "MARK"]
instrumentor.uninstrument()
spans = [
    {"name": span.name, "start": span.start_time, "end": span.end_time, "id": span.context.span_id,
     "parent": span.parent and span.parent.span_id, "events": [event.name for event in span.events]}
    for span in exporter.get_finished_spans()
]
print(json.dumps({"spans": spans, "real": real, "marks": marks, "now": time.time_ns()}))
"""
SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def shifted_clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler")
    directory = tmp_path_factory.mktemp("shifted_clock")
    (directory / "shifted.c").write_text(SHIFTED)
    command = [compiler, "-shared", "-fPIC", "shifted.c", "-o", "shifted.so", "-ldl"]
    subprocess.run(command, cwd=directory, check=True, timeout=60)
    return directory / "shifted.so"


@pytest.mark.parametrize("recorder", ["native", "python"])
@pytest.mark.parametrize("seconds", [-3600.0, -60.0, 3600.0, -0.4, 0.4])
def test_the_wall_clock_is_set_while_ranges_are_open(
    run_program: Callable[..., Any], shifted_clock: Path, tmp_path: Path, seconds: float, recorder: str
) -> None:
    done = run_program(PROGRAM, str(seconds), LD_PRELOAD=str(shifted_clock), OTEL_RECFN_RECORDER=recorder)
    told = json.loads(done.stdout)
    spans = {span["name"]: span for span in told["spans"]}
    for name, real_ns in told["real"].items():
        assert 0 <= real_ns - (spans[name]["end"] - spans[name]["start"]) < 5_000_000 + real_ns // 1000, name
    by_id = {span["id"]: span for span in told["spans"]}
    for span in told["spans"]:
        around = by_id.get(span["parent"])
        if around is not None and not (abs(seconds) < 1 and "after" in span["name"]):
            assert around["start"] - 10_000 <= span["start"] <= span["end"] <= around["end"] + 10_000, span["name"]
    assert abs(spans["alone after 2"]["end"] - told["now"]) < SECOND
    jumped = abs(seconds) > 1
    assert spans["across"]["events"] == (["wall clock jumped"] if jumped else [])
    assert done.stderr.count("the wall clock jumped by") == jumped
    assert told["marks"] == ([f"wall clock jumped by {seconds:+.3f} s"] if jumped else [])
    assert (tmp_path / "trace.json").read_text().count("wall clock jumped by") == jumped
