"""Children that aren't forked and don't import torch: what they take over, what comes before it,
and what it costs them.
"""

from __future__ import annotations

import json
import multiprocessing.process
import multiprocessing.spawn
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.otlp_server import OtlpServer
from helpers.trace_files import names_in
from otel_recfn import OtelRecordFunctionInstrumentor
from otel_recfn.support import processes

Run = Callable[..., Any]

BEGIN = """
import json, multiprocessing, os, sys, threading
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from otel_recfn import OtelRecordFunctionInstrumentor, record_function, step
instrumentor = OtelRecordFunctionInstrumentor()

class ToFile(SpanExporter):
    def export(self, spans):
        for span in spans:
            parent = span.parent.span_id if span.parent is not None else None
            with open("spans.txt", "a") as file:
                line = [span.name, span.context.trace_id, span.context.span_id, parent]
                file.write(json.dumps(line) + chr(10))
        return SpanExportResult.SUCCESS

def provided(**keywords):
    provider = TracerProvider(**keywords)
    provider.add_span_processor(SimpleSpanProcessor(ToFile()))
    return provider

def work(name):
    with record_function(name):
        pass

def started(method, target, *arguments):
    process = multiprocessing.get_context(method).Process(target=target, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0
"""
METHODS = ("spawn", "forkserver")


def files(folder: Path) -> dict[str, list[str]]:
    return {re.sub(r"pid\d+", "pid", path.name): names_in(path) for path in folder.glob("*.json")}


def spans(folder: Path) -> dict[str, list[Any]]:
    """By name: trace id, span id, parent."""
    return {
        line[0]: line[1:]
        for line in map(json.loads, (folder / "spans.txt").read_text().splitlines())
    }


@pytest.mark.parametrize("method", METHODS)
def test_spans_of_a_child_with_a_provider(run_program: Run, tmp_path: Path, method: str) -> None:
    """Its own spans are where they were without us, but for those that it opens in a range."""
    program = (
        BEGIN
        + """
def in_child():
    trace.set_tracer_provider(provided())
    work("first")
    with trace.get_tracer("child").start_as_current_span("own"):
        work("second")
    with record_function("third"), trace.get_tracer("child").start_as_current_span("inside"):
        pass
    with step("step"):
        work("in a step")
    thread = threading.Thread(target=work, args=("in a thread",), name="worker")
    thread.start()
    thread.join()
    thread = threading.Thread(target=step("step in a thread")(work), args=("fifth",))
    thread.start()
    thread.join()

if __name__ == "__main__":
    trace.set_tracer_provider(provided())
    # On a loaded machine one range may take a thousand times as long as another: fold none.
    instrumentor.instrument(detail="all")
    with trace.get_tracer("program").start_as_current_span("request"):
        started(sys.argv[1], in_child)
"""
    )
    assert run_program(program, method).stderr == ""
    found = spans(tmp_path)
    request = found["request"]
    own = found["own"]
    assert found["first"][::2] == [request[0], request[1]]
    assert own[2] is None
    assert found["second"][::2] == [own[0], own[1]]
    assert found["third"][::2] == [request[0], request[1]]
    assert found["inside"][::2] == [found["third"][0], found["third"][1]]
    assert found["step"][::2] == [request[0], request[1]]
    assert found["in a step"][::2] == [found["step"][0], found["step"][1]]
    # As in a forked child.
    assert found["step in a thread"][2] is None
    assert found["in a thread"][::2] == [found["worker"][0], found["worker"][1]]


@pytest.mark.parametrize("method", METHODS)
def test_what_can_be_handed_over(run_program: Run, tmp_path: Path, method: str) -> None:
    """Functions and sinks of the program are, where they can be pickled; the rest of the
    settings is in any case.
    """
    program = (
        BEGIN
        + """
from otel_recfn.sinks.protocol import Sink

class Printing(Sink):
    name = "printing"
    def __init__(self, where, lock=None):
        self.where, self.lock = where, lock
    def write(self, batch):
        if len(batch):
            print(self.where, *[event.name for event in batch.events()], flush=True)
    def flush(self, timeout_s):
        return True
    def close(self, timeout_s):
        pass
    def counters(self):
        return {}
    def after_fork_in_child(self):
        return Printing("child:")

def hook(row, attributes):
    attributes["seen"] = True
    return "hooked"

def in_child():
    trace.set_tracer_provider(provided())
    work("range")

if __name__ == "__main__":
    keywords = {
        "plain": {"span_hook": hook, "sinks": [Printing("parent:")]},
        "locks": {
            "span_hook": lambda row, attributes: "another",
            "sinks": [Printing("parent:", threading.Lock())],
            "tracer_provider": provided(),
        },
    }
    instrumentor.instrument(chrome_trace="trace.json", **keywords[sys.argv[2]])
    started(sys.argv[1], in_child)
"""
    )
    done = run_program(program, method, "plain")
    assert (done.stdout, done.stderr) == ("child: range\n", "")
    assert "hooked" in spans(tmp_path)
    (tmp_path / "spans.txt").unlink()
    done = run_program(program, method, "locks")
    assert (done.stdout, done.stderr) == ("", "")
    assert "range" in spans(tmp_path)
    assert [names_in(path) for path in tmp_path.glob("trace.pid*")] == [["range"], ["range"]]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("place", ["in the module", "in the target"])
def test_what_a_child_asks_for_itself_comes_first(
    run_program: Run, tmp_path: Path, method: str, place: str
) -> None:
    program = (
        BEGIN
        + """
if sys.argv[2] == "in the module" and __name__ != "__main__":
    instrumentor.instrument(chrome_trace="own.json")

def in_child():
    if sys.argv[2] == "in the target":
        instrumentor.instrument(chrome_trace="own.json")
    work("range")

if __name__ == "__main__":
    instrumentor.instrument(chrome_trace="trace.json")
    started(sys.argv[1], in_child)
"""
    )
    run_program(program, method, place)
    assert names_in(tmp_path / "trace.json") == []
    assert [path.name for path in tmp_path.glob("trace.*")] == ["trace.json"]
    # A fork server may have one.
    assert [names for names in map(names_in, tmp_path.glob("own.pid*")) if names] == [["range"]]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "before",
    [
        "instrumentor.instrument(chrome_trace='trace.json'); instrumentor.uninstrument()",
        "instrumentor.instrument(chrome_trace='trace.json', enabled=False)",
    ],
)
def test_children_of_what_is_not_recorded(
    run_program: Run, tmp_path: Path, method: str, before: str
) -> None:
    program = (
        BEGIN
        + f"""
def in_child():
    work("range")
    is_given = hasattr(multiprocessing.spawn, "{processes.INHERITED}")
    print(instrumentor.is_instrumented_by_opentelemetry, is_given)

if __name__ == "__main__":
    {before}
    started(sys.argv[1], in_child)
"""
    )
    done = run_program(program.replace("import json", "import multiprocessing.spawn, json"), method)
    assert (done.stdout, done.stderr) == ("False False\n", "")
    assert [path.name for path in tmp_path.glob("trace.pid*")] == []


@pytest.mark.parametrize("method", METHODS)
def test_a_span_that_is_not_sampled(run_program: Run, tmp_path: Path, method: str) -> None:
    program = (
        BEGIN
        + """
def in_child():
    trace.set_tracer_provider(provided())
    work("range")
    instrumentor.flush()
    print(instrumentor.counters()["unsampled"])

if __name__ == "__main__":
    trace.set_tracer_provider(TracerProvider(sampler=ALWAYS_OFF))
    instrumentor.instrument()
    with trace.get_tracer("program").start_as_current_span("request"):
        started(sys.argv[1], in_child)
"""
    )
    assert run_program(program, method).stdout == "1\n"
    assert not (tmp_path / "spans.txt").exists()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("part", ["threading.Lock()", "None"])
def test_a_child_exports_whatever_sampler_its_parent_has(
    run_program: Run, method: str, part: str
) -> None:
    """Also one that can't be pickled, or one of the main module."""
    program = (
        BEGIN.replace("import ALWAYS_OFF", "import StaticSampler, Decision")
        + f"""
class Own(StaticSampler):
    def __init__(self):
        super().__init__(Decision.RECORD_AND_SAMPLE)
        self.part = {part}

if __name__ == "__main__":
    trace.set_tracer_provider(TracerProvider(sampler=Own()))
    instrumentor.instrument(span_exporter="otlp-http")
    started(sys.argv[1], work, "range")
"""
    )
    with OtlpServer("http") as server:
        run_program(program, method, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=server.endpoint)
        assert "range" in [span.name for span in server.spans]


@pytest.mark.parametrize("method", METHODS)
def test_a_child_with_nothing_to_record(run_program: Run, tmp_path: Path, method: str) -> None:
    """It never imports torch or numpy, has no thread of ours, and writes no file; its own
    children are recorded.
    """
    program = """
import multiprocessing, sys, threading

def range_of_a_grandchild():
    from otel_recfn import record_function
    with record_function("range"):
        pass

def in_child():
    print(sorted({"torch", "numpy"} & sys.modules.keys()), threading.active_count())
    process = multiprocessing.get_context("spawn").Process(target=range_of_a_grandchild)
    process.start()
    process.join()

if __name__ == "__main__":
    from otel_recfn import OtelRecordFunctionInstrumentor
    OtelRecordFunctionInstrumentor().instrument(chrome_trace="trace.json", modules=False)
    process = multiprocessing.get_context(sys.argv[1]).Process(target=in_child)
    process.start()
    process.join()
"""
    done = run_program(program, method)
    assert (done.stdout, done.stderr) == ("[] 1\n", "")
    assert files(tmp_path) == {"trace.json": [], "trace.pid.json": ["range"]}


@pytest.mark.parametrize("method", METHODS)
def test_what_a_child_says_of_an_error(run_program: Run, method: str) -> None:
    """Is what it says without us; and its exit code."""
    program = """
import multiprocessing, sys

def in_child():
    import sys
    from otel_recfn import record_function
    with record_function("range"):
        raise ValueError("of the program's")

if __name__ == "__main__":
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from otel_recfn import OtelRecordFunctionInstrumentor
    if sys.argv[2] == "with us":
        trace.set_tracer_provider(TracerProvider())
        OtelRecordFunctionInstrumentor().instrument(modules=False, span_exporter="otlp-http")
    process = multiprocessing.get_context(sys.argv[1]).Process(target=in_child, name="child")
    process.start()
    process.join()
    print(process.exitcode)
"""
    with OtlpServer("http") as server:
        endpoint = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": server.endpoint}
        with_us, without = [
            run_program(program, method, whether, **endpoint) for whether in ("with us", "without")
        ]
        assert "range" in [span.name for span in server.spans]
    assert (with_us.stdout, with_us.stderr) == (without.stdout, without.stderr)
    assert "of the program's" in without.stderr


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("provider", ["", "trace.set_tracer_provider(provided())"])
def test_children_without_a_provider_tell_it_once(
    run_program: Run, tmp_path: Path, method: str, provider: str
) -> None:
    """The first of them, and not each worker of each epoch."""
    program = (
        BEGIN
        + f"""
if __name__ == "__main__":
    {provider}
    instrumentor.instrument()
    with multiprocessing.get_context(sys.argv[1]).Pool(1, maxtasksperchild=1) as pool:
        for name in "abc":
            pool.apply(work, (name,))
        pool.close()
        pool.join()
"""
    )
    said = run_program(program, method).stderr
    assert (
        said.count("no tracer provider is set in this process")
        == said.count("no tracer provider")
        == 1
    )
    assert 'span_exporter="otlp"' in said


class TestMultiprocessing:
    """What of it is replaced, and that it is as it was."""

    def test_uninstrument_takes_it_back(self, instrumentor: OtelRecordFunctionInstrumentor) -> None:
        before = vars(multiprocessing.spawn).copy()
        for _ in range(2):
            instrumentor.instrument()
            assert multiprocessing.spawn.get_preparation_data is not before["get_preparation_data"]
            instrumentor.uninstrument()
            assert vars(multiprocessing.spawn) == before

    def test_it_is_left_alone_where_nothing_is_recorded(
        self, instrumentor: OtelRecordFunctionInstrumentor
    ) -> None:
        before = vars(multiprocessing.spawn).copy()
        instrumentor.instrument(enabled=False)
        assert vars(multiprocessing.spawn) == before

    def test_it_has_what_we_need(self) -> None:
        data = multiprocessing.spawn.get_preparation_data("name")
        assert isinstance(data, dict)
        assert processes.ENTRY not in data
        assert callable(multiprocessing.process.BaseProcess._bootstrap)  # type: ignore[attr-defined]
