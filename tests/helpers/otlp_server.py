"""A receiving OTLP server that does the same with every request.

ok      takes spans
error   answers, but not with success
hang    accepts, and doesn't answer until it is released
refuse  nobody listens on the port
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import grpc
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from helpers.faulty_server import (
    Act,
    Answers,
    free_port,
    grpc_server,
    http_server,
    refuse,
    status,
    take,
)

ERRORS = {"grpc": refuse(grpc.StatusCode.INVALID_ARGUMENT), "http": status(400)}


def released(then: Act) -> Act:
    """What is done when the server is released."""

    def act(where: Any, body: bytes) -> bytes | None:
        where.answers.released.wait()
        return then(where, body)

    return act


class OtlpServer:
    """Listens on a free port of localhost while its ``with`` block runs.

    Args:
        protocol: ``"grpc"`` or ``"http"``.
        mode: one of those above.
    """

    def __init__(self, protocol: str, mode: str = "ok") -> None:
        self.protocol = protocol
        self._mode = mode
        self._open = ExitStack()
        error = ERRORS[protocol]
        self.answers = Answers(then={"error": error, "hang": released(error)}.get(mode, take))

    def __enter__(self) -> OtlpServer:
        if self._mode == "refuse":
            self.endpoint = f"http://localhost:{free_port()}" + "/v1/traces" * (
                self.protocol == "http"
            )
        else:
            self.endpoint = self._open.enter_context(
                (grpc_server if self.protocol == "grpc" else http_server)(self.answers)
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.close()

    def release(self) -> None:
        """Who hangs is answered, with an error."""
        self.answers.released.set()

    @property
    def port(self) -> int | None:
        return urlsplit(self.endpoint).port

    @property
    def resource_spans(self) -> list[ResourceSpans]:
        """Everything received."""
        return [one for request in list(self.answers.taken) for one in request.resource_spans]

    @property
    def spans(self) -> list[Span]:
        """Every span received, in order."""
        return [
            span for one in self.resource_spans for scope in one.scope_spans for span in scope.spans
        ]
