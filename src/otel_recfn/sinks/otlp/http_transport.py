"""Requests over HTTP, by a session of ``requests``: TLS, proxies and connections are its business."""

from __future__ import annotations

import encodings.idna  # noqa: F401  requests would import it in the thread that sends, as well as netrc
import netrc  # noqa: F401
from collections.abc import Sequence
from typing import Any, NamedTuple

from otel_recfn.sinks.otlp.answers import partial_success, retry_after_s
from otel_recfn.sinks.otlp.outcome import TOO_LARGE, Outcome, Verdict
from otel_recfn.support.safe_text import safe_endpoint, safe_request_error, safe_text, secrets_of

RETRYABLE = {429, 502, 503, 504}
CONTENT_TOO_LARGE = 413
MOST_ANSWER = 1 << 16
"""So much of an answer is read."""


class HttpTarget(NamedTuple):
    """What an exporter for HTTP was configured with."""

    endpoint: str
    headers: dict[str, str]
    timeout_s: float
    encoding: str
    session: Any
    owned: bool
    """Whether the session is nobody else's."""


class HttpTransport:
    """To one endpoint."""

    concurrent = 2

    def __init__(self, target: HttpTarget) -> None:
        self._target, self._session = target, target.session
        self.where, self.encoding = safe_endpoint(target.endpoint), target.encoding
        self.hidden = secrets_of(target.endpoint, target.headers.items())
        self._headers = {key: value for key, value in target.headers.items() if key.lower() != "content-encoding"}
        if target.encoding:
            self._headers["Content-Encoding"] = target.encoding

    def send(self, body: bytes) -> Outcome:
        """One attempt."""
        try:
            with self._session.post(
                self._target.endpoint,
                data=body,
                headers=self._headers,
                timeout=self._target.timeout_s,
                verify=self._session.verify,  # named here, else REQUESTS_CA_BUNDLE counts more than the exporter's certificate
                allow_redirects=False,
                stream=True,
            ) as response:
                return _outcome(response, _content(response), self.hidden)
        except OSError as error:  # all of requests' are
            # a ValueError: an endpoint that is no URL, a header that is none
            verdict = Verdict.REFUSED if isinstance(error, ValueError) else Verdict.AGAIN
            return Outcome(verdict, safe_request_error(error, self.hidden))

    def close(self) -> None:
        """Let go of connections."""
        if self._target.owned:
            self._session.close()


def _content(response: Any) -> bytes:
    """The beginning of an answer; nothing where it breaks off, because the status has said what counts."""
    try:
        content: bytes = response.raw.read(MOST_ANSWER, decode_content=True)
    except Exception:
        return b""
    return content


def _outcome(response: Any, content: bytes, hidden: Sequence[str]) -> Outcome:
    status = response.status_code
    if 200 <= status < 300:
        told = partial_success(content) if "protobuf" in response.headers.get("Content-Type", "") else None
        return Outcome(Verdict.TAKEN, safe_text(told.message, hidden), told.rejected) if told else Outcome(Verdict.TAKEN)
    message = f"HTTP {status} {safe_text(response.reason, hidden)}"
    if status in RETRYABLE:
        return Outcome(Verdict.AGAIN, message, delay_s=retry_after_s(response.headers.get("Retry-After")))
    if 300 <= status < 400:
        location = safe_text(response.headers.get("Location", "nowhere"), hidden)
        message += f" to {location}, which is not followed: set the endpoint to where spans are taken"
    return Outcome(Verdict.REFUSED, f"{message}: {TOO_LARGE}" if status == CONTENT_TOO_LARGE else message)
