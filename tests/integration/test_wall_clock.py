"""Somebody sets the wall clock while a program runs: durations stay, and what begins later lies
where its parents do.

The program runs with a library that shifts what CLOCK_REALTIME says, so that nobody else's clock is
touched.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.timeouts import PATIENCE_S

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
import ctypes, json, sys, time
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
inside, around = {}, {}

def timed(name, inner=lambda: time.sleep(0.02)):
    before = time.perf_counter_ns()
    with record_function(name):
        first = time.perf_counter_ns()
        inner()
        inside[name] = time.perf_counter_ns() - first
    around[name] = time.perf_counter_ns() - before

def set_clock():
    assert instrumentor.flush(300)
    shift.value += int(float(sys.argv[1]) * 1e9)
    assert instrumentor.flush(300)

def across():
    timed("inside before")
    set_clock()
    timed("inside after")

instrumentor.instrument(chrome_trace="trace.json")
with profile() as prof:
    with tracer.start_as_current_span("request before"):
        timed("below request before")
    timed("across", across)
    for again in range(3):
        with tracer.start_as_current_span(f"request after {again}"):
            timed(f"below request after {again}")
        began = time.time_ns()
        timed(f"alone after {again}")
        ended = time.time_ns()
instrumentor.flush(300)
marks = [event.name for event in prof.events() if event.kind.name == "MARK"]
instrumentor.uninstrument()
spans = [
    {"name": span.name, "start": span.start_time, "end": span.end_time, "id": span.context.span_id,
     "parent": span.parent and span.parent.span_id}
    for span in exporter.get_finished_spans()
]
print(json.dumps({
    "spans": spans, "inside": inside, "around": around, "marks": marks, "last": [began, ended]
}))
"""
SECOND = 1_000_000_000
RATE_ERROR = 1e-3
"""A cycle counter's rate is measured while it is used."""


@pytest.fixture(scope="module")
def shifted_clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler")
    directory = tmp_path_factory.mktemp("shifted_clock")
    (directory / "shifted.c").write_text(SHIFTED)
    command = [compiler, "-shared", "-fPIC", "shifted.c", "-o", "shifted.so", "-ldl"]
    subprocess.run(command, cwd=directory, check=True, timeout=PATIENCE_S)
    return directory / "shifted.so"


@pytest.mark.parametrize("seconds", [-3600.0, -60.0, 3600.0, -0.4, 0.4])
def test_the_wall_clock_is_set_while_ranges_are_open(
    run_program: Callable[..., Any], shifted_clock: Path, tmp_path: Path, seconds: float
) -> None:
    done = run_program(PROGRAM, str(seconds), LD_PRELOAD=str(shifted_clock))
    output = json.loads(done.stdout)
    spans = {span["name"]: span for span in output["spans"]}
    for name, around_ns in output["around"].items():
        duration_ns = spans[name]["end"] - spans[name]["start"]
        assert (
            output["inside"][name] * (1 - RATE_ERROR) <= duration_ns <= around_ns * (1 + RATE_ERROR)
        ), name
    check_places(output["spans"], small_change=abs(seconds) < 1)
    began, ended = output["last"]
    assert (
        began - SECOND
        < spans["alone after 2"]["start"]
        <= spans["alone after 2"]["end"]
        < ended + SECOND
    )
    jumped = abs(seconds) > 1
    assert done.stderr.count("the wall clock jumped by") == jumped
    assert output["marks"] == ([f"wall clock jumped by {seconds:+.3f} s"] if jumped else [])
    assert (tmp_path / "trace.json").read_text().count("wall clock jumped by") == jumped


def check_places(spans: list[dict[str, Any]], small_change: bool) -> None:
    """Each lies in its parent; the program's spans are made by another reading of the clock.

    A small change is followed without that.
    """
    by_id = {span["id"]: span for span in spans}
    for span in spans:
        parent = by_id.get(span["parent"])
        if parent is not None and not (small_change and "after" in span["name"]):
            apart = SECOND // 10 if parent["name"].startswith("request") else 0
            assert (
                parent["start"] - apart <= span["start"] <= span["end"] <= parent["end"] + apart
            ), span["name"]
