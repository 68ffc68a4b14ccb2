"""OTLP servers on real sockets that do what they are told with each request: one thing after the
other, and then take all.

Answers([status(503), reset(), hang()])   of HTTP
Answers([refuse(StatusCode.UNAVAILABLE)]) of gRPC
"""

from __future__ import annotations

import contextlib
import gzip
import socket
import ssl
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

DRIP_S = 0.05
METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
Act = Callable[[Any, bytes], bytes | None]
"""Of the handler or the call, and of the body: the answer; None where it has answered itself."""


class Answers:
    """What a server does, one after the other and then always, and what it got."""

    def __init__(self, acts: Sequence[Act] = (), then: Act | None = None) -> None:
        self._acts = list(acts)
        self._then = then or take
        self.lock = threading.Lock()
        self.released = threading.Event()
        """Who hangs goes on."""
        self.asked = threading.Semaphore(0)
        self.bodies: list[bytes] = []
        """Of every attempt."""
        self.times: list[float] = []
        """When each came, in seconds."""
        self.encodings: list[str] = []
        self.clients: set[Any] = set()
        """Addresses, each of a connection over HTTP."""
        self.taken: list[ExportTraceServiceRequest] = []

    def act(self, where: Any, body: bytes) -> bytes | None:
        with self.lock:
            self.bodies.append(body)
            self.times.append(time.monotonic())
            act = self._acts.pop(0) if self._acts else self._then
        where.answers = self
        answer = act(where, body)
        self.asked.release()
        return answer

    def names(self) -> list[str]:
        """Of the spans that were taken."""
        with self.lock:
            spans = [
                scope.spans
                for request in self.taken
                for each in request.resource_spans
                for scope in each.scope_spans
            ]
        return [span.name for each in spans for span in each]


def take(where: Any, body: bytes) -> bytes:
    request = ExportTraceServiceRequest.FromString(body)
    with where.answers.lock:
        where.answers.taken.append(request)
    return b""


def take_partly(rejected: int, message: str) -> Act:
    def act(where: Any, body: bytes) -> bytes:
        take(where, body)
        answer = ExportTraceServiceResponse()
        answer.partial_success.rejected_spans, answer.partial_success.error_message = (
            rejected,
            message,
        )
        return answer.SerializeToString()

    return act


def status(code: int, **headers: str) -> Act:
    def act(where: Any, _body: bytes) -> None:
        where.answer(code, b"", {name.replace("_", "-"): value for name, value in headers.items()})

    return act


def reset() -> Act:
    """The connection is reset before there is an answer."""

    def act(where: Any, _body: bytes) -> None:
        where.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        where.connection.close()
        where.close_connection = True

    return act


def held(arrived: threading.Semaphore, until: threading.Event) -> Act:
    """It takes spans when it is let go; tells who waits that they have come."""

    def act(where: Any, body: bytes) -> bytes:
        arrived.release()
        until.wait()
        return take(where, body)

    return act


def break_off() -> Act:
    """In the middle of the answer."""

    def act(where: Any, _body: bytes) -> None:
        where.wfile.write(b"HTTP/1.1 503 Service Unav")
        where.wfile.flush()
        reset()(where, b"")

    return act


def take_and_break_off(**headers: str) -> Act:
    """Takes the request, but of the answer comes no more than its status."""

    def act(where: Any, body: bytes) -> None:
        take(where, body)
        where.close_connection = True
        where.answer(
            200, b"no gzip", {name.replace("_", "-"): value for name, value in headers.items()}
        )

    return act


def drip(begin: bytes) -> Act:
    """After the beginning of an answer, one byte of it at a time."""

    def act(where: Any, _body: bytes) -> None:
        where.close_connection = True
        where.wfile.write(begin)
        while not where.answers.released.wait(DRIP_S):
            where.wfile.write(b"x")

    return act


def hang() -> Act:
    def act(where: Any, _body: bytes) -> None:
        where.answers.released.wait()
        where.close_connection = True

    return act


def refuse(code: grpc.StatusCode, details: bytes = b"") -> Act:
    def act(call: Any, _body: bytes) -> None:
        if details:
            call.set_trailing_metadata((("grpc-status-details-bin", details),))
        call.abort(code, "as the test wants it")

    return act


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answers: Answers

    def do_POST(self) -> None:
        answers: Answers = self.server.answers  # type: ignore[attr-defined]
        answers.clients.add(self.client_address)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        encoding = self.headers.get("Content-Encoding", "")
        answers.encodings.append(encoding)
        body = {"gzip": gzip.decompress, "deflate": zlib.decompress}.get(encoding, bytes)(body)
        answer = answers.act(self, body)
        if answer is not None:
            self.answer(200, answer, {"Content-Type": "application/x-protobuf"})

    def answer(self, code: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.connections: list[socket.socket] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.append(request)
        super().process_request(request, client_address)

    def end_connections(self) -> None:
        """As the end of a process does."""
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Quiet."""


@contextlib.contextmanager
def http_server(
    answers: Answers, port: int = 0, tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Its endpoint."""
    server = _Server(("127.0.0.1", port), _Handler)
    server.answers = answers  # type: ignore[attr-defined]
    if tls is not None:
        server.socket = tls.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    try:
        scheme = "https" if tls is not None else "http"
        yield f"{scheme}://localhost:{server.server_address[1]}/v1/traces"
    finally:
        answers.released.set()
        server.shutdown()
        server.server_close()
        server.end_connections()
        thread.join()


@contextlib.contextmanager
def grpc_server(
    answers: Answers, port: int = 0, tls: grpc.ServerCredentials | None = None
) -> Iterator[str]:
    """Its endpoint."""
    server = grpc.server(ThreadPoolExecutor(max_workers=4))

    def export(body: bytes, context: Any) -> bytes:
        return answers.act(_Call(context), body) or b""

    handler = grpc.unary_unary_rpc_method_handler(export)
    server.add_generic_rpc_handlers((_Generic(handler),))
    where = f"127.0.0.1:{port}"
    bound = server.add_insecure_port(where) if tls is None else server.add_secure_port(where, tls)
    server.start()
    try:
        yield f"http{'s' if tls is not None else ''}://localhost:{bound}"
    finally:
        answers.released.set()
        server.stop(grace=0).wait()


class _Call:
    def __init__(self, context: Any) -> None:
        self.set_trailing_metadata, self.abort = context.set_trailing_metadata, context.abort


class _Generic(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, handler: Any) -> None:
        self._handler = handler

    def service(self, call: Any) -> Any:
        return self._handler if call.method == METHOD else None


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
