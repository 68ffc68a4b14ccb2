"""A receiving server made of the official OTLP services, gRPC and HTTP, that can also fail as collectors do.

ok      takes spans
error   answers, but not with success
hang    accepts, and doesn't answer until it is released
refuse  nobody listens on the port
"""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

MODES = ("ok", "error", "hang", "refuse")


class OtlpServer:
    """Listens on a free port of localhost while its ``with`` block runs.

    Args:
        protocol: ``"grpc"`` or ``"http"``.
        mode: one of MODES.
    """

    def __init__(self, protocol: str, mode: str = "ok") -> None:
        assert mode in MODES
        self.protocol, self.mode = protocol, mode
        self.requests: list[ExportTraceServiceRequest] = []
        self.asked = threading.Event()
        self._released = threading.Event()
        self._lock = threading.Lock()

    def __enter__(self) -> OtlpServer:
        if self.mode == "refuse":
            self.port, self._stop = _closed_port(), lambda: None
        elif self.protocol == "grpc":
            self._listen_grpc()
        else:
            self._listen_http()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.release()
        self._stop()

    def release(self) -> None:
        """Who hangs is answered, with an error."""
        self._released.set()

    @property
    def endpoint(self) -> str:
        """What an exporter of this protocol takes as ``endpoint``."""
        path = "/v1/traces" if self.protocol == "http" else ""
        return f"http://127.0.0.1:{self.port}{path}"

    @property
    def resource_spans(self) -> list[ResourceSpans]:
        """Everything received."""
        with self._lock:
            return [one for request in self.requests for one in request.resource_spans]

    @property
    def spans(self) -> list[Span]:
        """Every span received, in order."""
        return [span for one in self.resource_spans for scope in one.scope_spans for span in scope.spans]

    def take(self, request: ExportTraceServiceRequest) -> bool:
        """Receive a request as the mode says; whether it succeeded."""
        self.asked.set()
        if self.mode == "hang":
            self._released.wait()
            return False
        if self.mode == "ok":
            with self._lock:
                self.requests.append(request)
        return self.mode == "ok"

    def _listen_grpc(self) -> None:
        server = grpc.server(ThreadPoolExecutor(max_workers=4))
        add_TraceServiceServicer_to_server(_GrpcService(self), server)
        self.port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        self._stop = lambda: server.stop(grace=1).wait()

    def _listen_http(self) -> None:
        server = ThreadingHTTPServer(("127.0.0.1", 0), _HttpHandler)
        server.daemon_threads = True
        server.otlp = self  # type: ignore[attr-defined]
        self.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        self._stop = stop


class _GrpcService(TraceServiceServicer):
    def __init__(self, server: OtlpServer) -> None:
        self._server = server

    def Export(self, request: ExportTraceServiceRequest, context: grpc.ServicerContext) -> ExportTraceServiceResponse:
        if not self._server.take(request):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "refused by the test")
        return ExportTraceServiceResponse()


class _HttpHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        assert self.headers["Content-Type"] == "application/x-protobuf"
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server: OtlpServer = self.server.otlp  # type: ignore[attr-defined]
        taken = server.take(ExportTraceServiceRequest.FromString(body))
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200 if taken else 400)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


def _closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
