"""What each kind of process exports with ``span_exporter``: how it ends, and what it forks.
docs/otlp.md tells it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.otlp_server import OtlpServer
from helpers.timeouts import PATIENCE_S

pytestmark = pytest.mark.one_python

BEGIN = """
import multiprocessing, os, signal, sys, time
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from otel_recfn import OtelRecordFunctionInstrumentor, record_function

class SeesNothing(SpanProcessor):
    def on_end(self, span):
        if span.instrumentation_scope.name == "otel_recfn":
            os.write(2, b"a processor saw a span of ours")
            os._exit(77)

provider = TracerProvider()
provider.add_span_processor(SeesNothing())
trace.set_tracer_provider(provider)
instrumentor = OtelRecordFunctionInstrumentor()
instrumentor.instrument(span_exporter="otlp-http", span_budget=None, roots_per_second=None)

def work(name):
    with record_function(name):
        pass

def work_in_child():
    work("child")
"""
AS_MAIN = (
    "\nif __name__ == '__main__':\n    work('parent')\n    children = [{}]\n    {}\n   "
    " work('parent')\n"
)
JOIN = "[child.start() for child in children]; [child.join() for child in children]"
PROGRAMS = {
    "exits": "with record_function('parent'):\n    sys.exit(3)",
    "raises": "with record_function('parent'):\n    raise KeyError",
    "SIGTERM, handled": (
        """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
work('parent')
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)"""
    ),
    "SIGTERM": (
        "work('parent')\ninstrumentor.flush()\nwork('lost')\nos.kill(os.getpid(),"
        " signal.SIGTERM)\ntime.sleep(60)"
    ),
    "os._exit in a fork": (
        """
work('parent')
if os.fork() == 0:
    work('child')
    instrumentor.flush()
    work('lost')
    os._exit(0)
os.wait()
work('parent')"""
    ),
    "prefork": (
        """
# as gunicorn does: workers that are forked after instrument(), and end at SIGTERM by sys.exit
workers = [os.fork(), 0]
if workers[0]:
    workers[1] = os.fork()
if 0 in workers:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    work('child')
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
for worker in workers:
    os.waitpid(worker, 0)
work('parent')"""
    ),
    "instrumented in the child alone": (
        """
def instrumented_work():
    instrumentor.instrument(span_exporter="otlp-http", span_budget=None)
    work("child")

work("parent")
instrumentor.uninstrument()
child = multiprocessing.get_context("fork").Process(target=instrumented_work)
child.start(), child.join()"""
    ),
    **{
        method: AS_MAIN.format(
            f"multiprocessing.get_context({method!r}).Process(target=work_in_child)", JOIN
        )
        for method in ("fork", "spawn", "forkserver")
    },
}
ARRIVES = {
    "exits": {"parent": 1},
    "raises": {"parent": 1},
    "SIGTERM, handled": {"parent": 1},
    "SIGTERM": {"parent": 1},
    "os._exit in a fork": {"parent": 2, "child": 1},
    "instrumented in the child alone": {"parent": 1, "child": 1},
    "prefork": {"parent": 1, "child": 2},
    **{method: {"parent": 2, "child": 1} for method in ("fork", "spawn", "forkserver")},
}
Arrived = dict[str, list[tuple[str, str, int]]]
LAUNCHER = f"00-{0xABC:032x}-{0xDEF:016x}-01"


@pytest.fixture(scope="module")
def arrived(tmp_path_factory: pytest.TempPathFactory) -> Arrived:
    """By program: trace, name and rank of each span. All programs run at once."""
    folder = tmp_path_factory.mktemp("programs")
    found: Arrived = {name: [] for name in PROGRAMS}
    with OtlpServer("http") as server:
        running = [
            _started(name, folder, server.endpoint, rank) for rank, name in enumerate(PROGRAMS)
        ]
        for process in running:
            process.communicate(timeout=PATIENCE_S)
            assert process.returncode != 77
        for one in server.resource_spans:
            attributes = {each.key: each.value for each in one.resource.attributes}
            for span in [span for scope in one.scope_spans for span in scope.spans]:
                rank = attributes["recfn.rank"].int_value
                found[attributes["service.name"].string_value].append(
                    (span.trace_id.hex(), span.name, rank)
                )
    return found


def _started(name: str, folder: Path, endpoint: str, rank: int) -> subprocess.Popen[bytes]:
    file = folder / f"program{rank}.py"
    file.write_text(BEGIN + PROGRAMS[name])
    environment = {
        "OTEL_SERVICE_NAME": name,
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": endpoint,
        "RANK": str(rank),
        "TRACEPARENT": LAUNCHER,
    }
    return subprocess.Popen(
        [sys.executable, str(file)], env={**os.environ, **environment}, stderr=subprocess.PIPE
    )


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_what_arrives(name: str, arrived: Arrived) -> None:
    names = [span for _, span, _ in arrived[name]]
    assert {
        each: names.count(each) for each in ("parent", "child", "lost") if each in names
    } == ARRIVES[name]
    # The launcher's trace goes on.
    assert {trace_id for trace_id, _, _ in arrived[name]} == {f"{0xABC:032x}"}
    assert {rank for _, _, rank in arrived[name]} == {list(PROGRAMS).index(name)}
