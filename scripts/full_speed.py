"""Records as fast as threads can below sampled spans, while a server in a process of its own reads
every span that is sent.

    python scripts/full_speed.py --seconds 60 --threads 4 --epoch-steps 100

Each thread trains a tiny model, whose step is over a thousand operators that compute next to
nothing, in the program's spans: an epoch, and in it its steps. ``--epoch-steps 0``: each step is a
trace of its own. At the end the counters have to balance, no span may lack its parent, and nothing
may be dropped; the exit code is 1 otherwise. It also tells how much memory was in use.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent import futures
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

FOLDED = "recfn.unit.folded.count"
Report = dict[str, Any]


class Received(TraceServiceServicer):
    """Counts what is sent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: set[tuple[bytes, bytes]] = set()
        self._parents: list[tuple[bytes, bytes]] = []
        self._per_trace: Counter[bytes] = Counter()
        self._ours = self._folded = 0

    def Export(
        self, request: ExportTraceServiceRequest, _context: grpc.ServicerContext
    ) -> ExportTraceServiceResponse:
        with self._lock:
            for scope in [scope for one in request.resource_spans for scope in one.scope_spans]:
                ours = scope.scope.name == "otel_recfn"
                for span in scope.spans:
                    self._take(span, ours)
        return ExportTraceServiceResponse()

    def _take(self, span: Any, ours: bool) -> None:
        self._ids.add((span.trace_id, span.span_id))
        if span.parent_span_id:
            self._parents.append((span.trace_id, span.parent_span_id))
        if ours:
            self._ours += 1
            self._per_trace[span.trace_id] += 1
            self._folded += sum(
                [one.value.int_value for one in span.attributes if one.key == FOLDED]
            )

    def report(self) -> Report:
        """What came."""
        orphans = sum([parent not in self._ids for parent in self._parents])
        most = max(self._per_trace.values(), default=0)
        traces = len({trace_id for trace_id, _ in self._ids})
        return {
            "received": self._ours,
            "orphans": orphans,
            "folded": self._folded,
            "traces": traces,
            "most of a trace": most,
        }


def serve() -> None:
    """Says its port, takes spans until its input ends, and says what came."""
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    received = Received()
    add_TraceServiceServicer_to_server(received, server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    sys.stdin.read()
    server.stop(grace=5).wait()
    print(json.dumps(received.report()))


class Server:
    """The server, in a process of its own."""

    def __init__(self) -> None:
        command = [sys.executable, __file__, "--serve"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.endpoint = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def end(self) -> Report:
        """What came."""
        said, _ = self._process.communicate()
        report: Report = json.loads(said)
        return report


def work(tracer: Any, epoch_steps: int, until: float) -> None:
    """One thread's training."""
    from helpers.torch_programs import Training

    training = Training()
    while time.monotonic() < until:
        with tracer.start_as_current_span("epoch") if epoch_steps else nullcontext():
            for _ in range(max(1, epoch_steps)):
                with tracer.start_as_current_span("step"):
                    training.step()
                if time.monotonic() >= until:
                    break


def memory_mb() -> float:
    """What of this process is in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def in_threads(count: int, seconds: float, body: Callable[[float], None]) -> list[float]:
    """Run ``body`` in threads; how many MB were in memory, each second."""
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=body, args=(until,)) for _ in range(count)]
    for thread in threads:
        thread.start()
    memory = []
    while time.monotonic() < until:
        time.sleep(1)
        memory.append(memory_mb())
    for thread in threads:
        thread.join()
    return memory


def run(options: argparse.Namespace) -> Report:
    """Record, send, and count."""
    import torch
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from otel_recfn import OtelRecordFunctionInstrumentor

    torch.set_num_threads(1)
    server = Server()
    provider = TracerProvider()
    provider.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(endpoint=server.endpoint, insecure=True))
    )
    tracer = provider.get_tracer("full speed")
    instrumentor = OtelRecordFunctionInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    memory = in_threads(
        options.threads, options.seconds, lambda until: work(tracer, options.epoch_steps, until)
    )
    instrumentor.flush(60)
    instrumentor.uninstrument()
    provider.shutdown()
    third = max(1, len(memory) // 3)
    parts = [max(memory[first : first + third], default=0.0) for first in (0, third, 2 * third)]
    return {
        **server.end(),
        "MB in each third": [round(part) for part in parts],
        "counters": instrumentor.counters(),
    }


def faults(report: Report) -> list[str]:
    """What is not as it has to be."""
    from otel_recfn.model.counters import losses

    counts = report["counters"]
    found = [f"{name} is {count:,}" for name, count in losses(counts).items()]
    if counts["waiting"]:
        found.append(f"{counts['waiting']:,} ranges came to no end")
    if report["orphans"]:
        found.append(f"{report['orphans']:,} spans lack their parent")
    if report["received"] != counts["exported"]:
        found.append(f"{report['received']:,} spans were received of {counts['exported']:,}")
    if report["folded"] < counts["folded"]:
        found.append(f"spans tell of {report['folded']:,} folded ranges of {counts['folded']:,}")
    return found


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--epoch-steps", type=int, default=100)
    parser.add_argument("--serve", action="store_true", help="be the server")
    options = parser.parse_args()
    if options.serve:
        serve()
        return 0
    report = run(options)
    counters = report.pop("counters")
    for name, value in {
        **report,
        **{name: count for name, count in counters.items() if count},
    }.items():
        print(f"{name:<40} {value:>14,}" if isinstance(value, int) else f"{name:<40} {value}")
    found = faults({**report, "counters": counters})
    print(
        "\n".join(found)
        or "nothing was dropped, every span has its parent, and the counters balance"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
