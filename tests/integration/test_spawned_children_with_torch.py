"""Children that aren't forked: what they run is told as a forked child's is, with the settings
of the program.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from helpers.otlp_server import OtlpServer
from helpers.trace_files import names_in

pytestmark = pytest.mark.torch
Run = Callable[..., Any]

PROGRAM = """
import multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from otel_recfn import OtelRecordFunctionInstrumentor
sys.path.append(os.path.dirname(__file__))

def work(name):
    import torch
    from otel_recfn import record_function
    with record_function(name):
        torch.ones(3).relu()

def nested(method, name):
    started(method, name)

def started(method, *arguments, target=work):
    process = multiprocessing.get_context(method).Process(target=target, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0

def in_executor(name):
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(work, name).result()

def in_a_pool(name):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply(work, (name,))
        pool.close()
        pool.join()

def by_torch(index, name):
    work(name)

def torch_context(name):
    import torch.multiprocessing
    torch.multiprocessing.spawn(by_torch, (name,))

WAYS = {
    "fork": lambda: started("fork", "fork"),
    "spawn": lambda: started("spawn", "spawn"),
    "forkserver": lambda: started("forkserver", "forkserver"),
    "executor of spawn": lambda: in_executor("executor of spawn"),
    "pool of spawn": lambda: in_a_pool("pool of spawn"),
    "spawn in spawn": lambda: started("spawn", "spawn", "spawn in spawn", target=nested),
    "fork in spawn": lambda: started("spawn", "fork", "fork in spawn", target=nested),
    "torch.multiprocessing": lambda: torch_context("torch.multiprocessing"),
}

def main():
    if "preloaded" in sys.argv:
        multiprocessing.set_forkserver_preload(["torch"])
    if "server first" in sys.argv:
        started("forkserver", target=print)
    if "automatic" not in sys.argv:
        resource = Resource({"service.name": "the program"})
        trace.set_tracer_provider(TracerProvider(resource=resource))
        OtelRecordFunctionInstrumentor().instrument(
            span_exporter="otlp-http", chrome_trace="trace.json", exit_timeout_s=300, detail="all",
            span_hook=lambda row, attributes: None,
        )
    os.makedirs("elsewhere", exist_ok=True)
    os.chdir("elsewhere")
    for way in sys.argv[1].split(","):
        with trace.get_tracer("program").start_as_current_span(way) as span:
            WAYS[way]()
        context = span.get_span_context()
        print(way, "%032x" % context.trace_id, "%016x" % context.span_id, sep=":")

if __name__ == "__main__":
    main()
"""
WAYS = (
    "fork",
    "spawn",
    "forkserver",
    "executor of spawn",
    "pool of spawn",
    "spawn in spawn",
    "fork in spawn",
    "torch.multiprocessing",
)


class Results(NamedTuple):
    """What arrived of a program."""

    spans: list[Any]
    services: set[str]
    enclosing: dict[str, tuple[str, str]]
    """Trace and span id of the span in which the child was started, by way."""
    files: dict[str, list[str]]
    """The ranges of Chrome traces."""

    def check(self, way: str) -> None:
        """The range lies in the span around, with its operators, also in a Chrome trace beside
        the program's. At `detail="all"`: an operator that takes long for the first time, as all
        do here, has no span where one operator in it takes that time.
        """
        (span,) = [each for each in self.spans if each.name == way and each.parent_span_id]
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == self.enclosing[way]
        operators = {each.name for each in self.spans if each.parent_span_id == span.span_id}
        assert {"aten::ones", "aten::relu"} <= operators
        # The program's file has its span of that name, too, in which it has nothing to do.
        (name,) = [
            name for name, ranges in self.files.items() if way in ranges and "aten::ones" in ranges
        ]
        assert re.fullmatch(r"trace\.pid\d+\.json", name)
        assert {"aten::ones", "aten::relu"} <= {*self.files[name]}


def results_of(run: Run, folder: Path, *arguments: str, **environment: str) -> Results:
    with OtlpServer("http") as server:
        done = run(
            PROGRAM, *arguments, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=server.endpoint, **environment
        )
        spans = list(server.spans)
        resources = [each.resource for each in server.resource_spans]
    assert re.sub(r"of \S+, process \d+ writes \S+\n", "", done.stderr) == ""
    services = {
        one.value.string_value
        for each in resources
        for one in each.attributes
        if one.key == "service.name"
    }
    lines = [line.split(":") for line in done.stdout.splitlines() if line.count(":") == 2]
    files = {path.name: names_in(path) for path in folder.rglob("*.json")}
    return Results(
        spans, services, {way: (trace_id, span_id) for way, trace_id, span_id in lines}, files
    )


@pytest.fixture(scope="module")
def results(run_by: Callable[..., Run], tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("program")
    return results_of(run_by(folder, sys.executable), folder, ",".join(WAYS))


@pytest.mark.parametrize("way", WAYS)
def test_a_childs_ranges_lie_in_the_span_that_it_was_started_in(results: Results, way: str) -> None:
    results.check(way)


def test_nothing_else_arrives_or_is_written(results: Results) -> None:
    assert {*results.services} == {"the program"}
    assert len(results.files) == len(WAYS) + 1
    ids = {(span.trace_id, span.span_id) for span in results.spans}
    enclosing = {
        (bytes.fromhex(trace_id), bytes.fromhex(span_id))
        for trace_id, span_id in results.enclosing.values()
    }
    assert {(span.trace_id, span.parent_span_id) for span in results.spans} <= ids | enclosing


@pytest.mark.parametrize(
    "how", [("server first",), ("preloaded", "server first")], ids=" and ".join
)
def test_a_fork_server(run_program: Run, tmp_path: Path, how: tuple[str, ...]) -> None:
    """That was there before, or has imported torch."""
    results_of(run_program, tmp_path, "forkserver", *how).check("forkserver")


@pytest.mark.parametrize("ways", ["spawn,spawn in spawn", "forkserver preloaded"])
def test_under_opentelemetry_instrument(
    run_by: Callable[..., Run], tmp_path: Path, ways: str
) -> None:
    pytest.importorskip(
        "opentelemetry.distro",
        reason="opentelemetry-distro is not installed: pip install '.[examples]'",
    )
    environment = {
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_SERVICE_NAME": "the program",
        "OTEL_RECFN_CHROME_TRACE": str(tmp_path / "trace.json"),
        "OTEL_RECFN_DETAIL": "all",
        "OTEL_RECFN_EXIT_TIMEOUT_S": "300",
    }
    run = run_by(
        tmp_path, str(Path(sys.executable).with_name("opentelemetry-instrument")), sys.executable
    )
    asked, *preloaded = ways.split(" preloaded")
    found = results_of(
        run, tmp_path, asked, "automatic", *["preloaded" for _ in preloaded], **environment
    )
    for way in asked.split(","):
        found.check(way)
