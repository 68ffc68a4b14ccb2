"""Metrics of whole programs: what ran last is exported at the exit, forked children go on, and
nothing else changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

SETUP = """
import json, os, sys, threading
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from otel_recfn import OtelRecordFunctionInstrumentor, record_function

class Lines(MetricExporter):
    "A line for each export: counts of durations by name, and of ranges by outcome."
    def export(self, data, timeout_millis=10_000, **_):
        found = {}
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        attributes = point.attributes
                        key = attributes.get("recfn.name") or attributes.get("recfn.outcome")
                        if metric.name in ("recfn.operation.duration", "recfn.ranges") and key:
                            found[key] = getattr(point, "count", None) or getattr(point, "value", 0)
        with open(f"{os.environ['OUT']}.{os.getpid()}", "a") as file:
            file.write(json.dumps(found) + "\\n")
        return MetricExportResult.SUCCESS
    def force_flush(self, timeout_millis=10_000): return True
    def shutdown(self, timeout_millis=30_000, **_): pass

def run(name, times):
    for _ in range(times):
        with record_function(name):
            pass

def provide(interval_ms=3_600_000):
    metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(Lines(), interval_ms)]))
"""


@pytest.fixture
def exported(
    run_program: Callable[..., Any], tmp_path: Any
) -> Callable[..., dict[str, dict[str, int]]]:
    """The last export of each process of a program, by what it wrote after ``pid:``."""

    def run(program: str, **environment: str) -> dict[str, dict[str, int]]:
        done = run_program(
            SETUP + program, OUT=str(tmp_path / "metrics"), PYTHONWARNINGS="ignore", **environment
        )
        assert done.stderr == ""
        pids = dict(
            line.split(" ")[1:] for line in done.stdout.splitlines() if line.startswith("pid: ")
        )
        lines = {
            name: (tmp_path / f"metrics.{pid}").read_text().splitlines()
            for name, pid in pids.items()
        }
        return {name: json.loads(each[-1]) for name, each in lines.items()}

    return run


@pytest.mark.parametrize("order", ["provide(); instrument()", "instrument(); provide()"])
def test_what_ran_last_is_exported_at_the_exit(exported: Callable[..., Any], order: str) -> None:
    program = f"""
instrument = OtelRecordFunctionInstrumentor().instrument
{order}
print("pid: program", os.getpid())
run("early", 3)
OtelRecordFunctionInstrumentor().flush(60)
run("late", 500)
"""
    found = exported(program)["program"]
    assert (found["early"], found["late"]) == (3, 500)
    if order.startswith("provide"):  # else the counters begin with what had been counted by then
        assert {name: count for name, count in found.items() if count} == {
            "early": 3,
            "late": 500,
            "unsampled": 503,
        }
