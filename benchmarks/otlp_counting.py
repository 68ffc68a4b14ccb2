"""An OTLP server over HTTP in a process of its own that keeps what it gets, and counts its spans at the end.

with server() as counting: ...; counting.spans()
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Counting:
    """The server, for its user."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        self.endpoint = f"http://127.0.0.1:{int(process.stdout.readline())}"

    def end(self) -> tuple[int, int]:
        """Spans and bytes that arrived."""
        told, _ = self._process.communicate()
        spans, size = told.split()
        return int(spans), int(size)


@contextmanager
def server() -> Iterator[Counting]:
    """Runs until ``end``, or while the ``with`` block does."""
    with subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Counting(process)
        process.kill()


BODIES: list[bytes] = []


class _Keeping(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        BODIES.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


def main() -> None:
    """The server: says its port, and serves until its input ends."""
    serving = ThreadingHTTPServer(("127.0.0.1", 0), _Keeping)
    serving.daemon_threads = True
    Thread(target=serving.serve_forever, daemon=True).start()
    print(serving.server_address[1], flush=True)
    sys.stdin.read()
    spans = 0
    for body in BODIES:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            spans += sum([len(scope.spans) for scope in resource.scope_spans])
    print(spans, sum([len(body) for body in BODIES]))


if __name__ == "__main__":
    main()
