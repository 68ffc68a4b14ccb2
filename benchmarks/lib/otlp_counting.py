"""An OTLP server in a process of its own that counts the spans that it gets, and forgets them.

with server() as counting: ...; counting.end()
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import grpc

METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


class Counting:
    """The server, for its user."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        self.port = int(process.stdout.readline())
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def arrived(self) -> int:
        """Spans, up to now."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline().split()[0])

    def end(self) -> tuple[int, int]:
        """Spans and bytes that arrived."""
        output, _ = self._process.communicate()
        spans, size = output.split()
        return int(spans), int(size)


@contextmanager
def server(over: str = "http", port: int = 0) -> Iterator[Counting]:
    """Runs until ``end``, or while the ``with`` block does, and is killed then."""
    command = [sys.executable, __file__, over, str(port)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Counting(process)
        finally:
            process.kill()


COUNTS: list[tuple[int, int]] = []
"""Spans and bytes of each request."""


class _Keeping(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        COUNTS.append((spans_in(body), len(body)))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


def spans_in(body: bytes) -> int:
    """How many spans a request has.

    They aren't parsed: what the server takes of the machine, the program lacks.
    """
    whole = (0, len(body))
    scopes = [scope for resource in fields(body, 1, whole) for scope in fields(body, 2, resource)]
    return sum(1 for scope in scopes for _ in fields(body, 2, scope))


def fields(body: bytes, number: int, message: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """From where to where the fields of this number go; all fields of the messages around spans
    have a length.
    """
    at, end = message
    while at < end:
        tag = body[at]
        size = body[at + 1]
        at = at + 2
        bits = 7
        while size >> bits:  # the highest bit of a length's byte says that another one follows
            size += (body[at] - 1) << bits
            at = at + 1
            bits = bits + 7
        if tag >> 3 == number:
            yield at, at + size
        at += size


class _OverGrpc(grpc.GenericRpcHandler):  # type: ignore[misc,unused-ignore]
    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return grpc.unary_unary_rpc_method_handler(self._take) if call.method == METHOD else None

    def _take(self, body: bytes, _context: object) -> bytes:
        COUNTS.append((spans_in(body), len(body)))
        return b""


def serve_http(port: int) -> int:
    """Over HTTP; the port."""
    serving = ThreadingHTTPServer(("127.0.0.1", port), _Keeping)
    serving.daemon_threads = True
    Thread(target=serving.serve_forever, daemon=True).start()
    return serving.server_address[1]


def serve_grpc(port: int) -> int:
    """Over gRPC; the port."""
    serving = grpc.server(ThreadPoolExecutor(max_workers=2))
    serving.add_generic_rpc_handlers((_OverGrpc(),))
    bound: int = serving.add_insecure_port(f"127.0.0.1:{port}")
    serving.start()
    SERVING.append(serving)
    return bound


SERVING: list[object] = []
"""A server over gRPC ends with the last reference to it."""


def main() -> None:
    """The server: says its port, its counts for each line of its input and at the input's end."""
    over = sys.argv[1]
    port = int(sys.argv[2])
    print({"http": serve_http, "grpc": serve_grpc}[over](port), flush=True)
    for _ in sys.stdin:
        print_counts()
    print_counts()


def print_counts() -> None:
    """Spans and bytes."""
    print(sum([spans for spans, _ in COUNTS]), sum([size for _, size in COUNTS]), flush=True)


if __name__ == "__main__":
    main()
