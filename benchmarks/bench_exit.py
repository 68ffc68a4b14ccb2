"""How long the end of a program takes, with the official OTLP exporter and a backend that works, is
down, or hangs.

    python benchmarks/bench_exit.py [runs]

Each program works for some seconds and ends; the table has the time from its last line to the end
of its process. "no span" has ranges of ours alone, "one span" a span of the program's at its
beginning, "spans" one every tenth of a second.
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from lib.command_line import read_number, sized

PROGRAM = """
import time
from sys import argv
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

endpoint, instrumented, spans, seconds = argv[1], argv[2] == "with us", argv[3], float(argv[4])
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
if instrumented:
    from otel_recfn import OtelRecordFunctionInstrumentor, record_function
    OtelRecordFunctionInstrumentor().instrument()
else:
    from contextlib import nullcontext as record_function

def work():
    for number in range(50):
        with record_function(f"range {number}"):
            pass

tracer = trace.get_tracer("program")
if spans == "one span":
    with tracer.start_as_current_span("request"):
        work()
by = time.monotonic() + seconds
while time.monotonic() < by:
    if spans == "spans":
        with tracer.start_as_current_span("request"):
            work()
    else:
        work()
    time.sleep(0.1)
print(time.time(), flush=True)
"""

RUNS = sized(3, 1)
SHORTEST_S = sized(1.0, 0.1)
"""The seconds for which the shortest program works."""
SPANS = sized(("no span", "one span", "spans"), ("spans",))
NAMES = ("without us", "with us")
Backend = Callable[[], AbstractContextManager[int]]


class _Takes(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing: the table is all that is printed."""


@contextmanager
def works() -> Iterator[int]:
    """The port of a server that takes everything."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Takes)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()


@contextmanager
def is_down() -> Iterator[int]:
    """A port on which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@contextmanager
def hangs() -> Iterator[int]:
    """The port of a server that takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        yield listening.getsockname()[1]


def exit_seconds(port: int, *arguments: str) -> float:
    """From the program's last line to the end of its process."""
    command = [sys.executable, "-c", PROGRAM, f"http://127.0.0.1:{port}/v1/traces", *arguments]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return time.time() - float(ended.stdout)


def ends(backend: Backend, lengths: list[float]) -> dict[tuple[str, str], list[float]]:
    """The times of all programs, by what they are and whether with us, each after running so
    many seconds.
    """
    found: dict[tuple[str, str], list[float]] = {
        (spans, name): [] for spans in SPANS for name in NAMES
    }

    def run(spans: str, name: str, seconds: float) -> None:
        with backend() as port:
            found[spans, name].append(exit_seconds(port, name, spans, str(seconds)))

    runs = [
        threading.Thread(target=run, args=(*key, seconds)) for seconds in lengths for key in found
    ]
    for one in runs:
        one.start()
    for one in runs:
        one.join()
    return found


def main(runs: int) -> None:
    lengths = [SHORTEST_S + 12.0 * number / max(1, runs - 1) for number in range(runs)]
    print(f"{'seconds to end, median (most)':38}{'without us':>16}{'with us':>16}{'beyond':>16}")
    backends: tuple[Backend, ...] = (works, is_down, hangs)
    for backend in sized(backends, (works,)):
        found = ends(backend, lengths)
        for spans in SPANS:
            without, ours = (found[spans, name] for name in NAMES)
            median = statistics.median(ours) - statistics.median(without)
            beyond = f"{median:+.1f} ({max(ours) - max(without):+.1f})"
            print(
                f"{backend.__name__ + ', ' + spans:38}"
                f"{_median_and_most(without):>16}{_median_and_most(ours):>16}{beyond:>16}",
                flush=True,
            )


def _median_and_most(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.1f} ({max(seconds):.1f})"


if __name__ == "__main__":
    main(read_number(__doc__, "runs", RUNS))
