"""An OTLP server over HTTP in a process of its own that counts the spans that it gets, and forgets them.

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

from otel_recfn.sinks.otlp.wire import fields


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


COUNTS: list[tuple[int, int]] = []
"""Spans and bytes of each request."""
SPAN_TAG = 0x12


class _Keeping(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
        COUNTS.append((spans_in(body), len(body)))

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


def spans_in(body: bytes) -> int:
    """How many spans a request of ours has."""
    resources = [content for number, _, content in fields(body) if number == 1]
    scopes = [content for each in resources for number, _, content in fields(each) if number == 2]
    return sum([_spans(scope) for scope in scopes])


def _spans(scope: bytes) -> int:
    """Without a look at what they say."""
    count = at = 0
    while at < len(scope):
        count += scope[at] == SPAN_TAG
        at, size, shift = at + 1, 0, 0
        while True:
            byte = scope[at]
            size |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                break
        at += size
    return count


def main() -> None:
    """The server: says its port, and serves until its input ends."""
    serving = ThreadingHTTPServer(("127.0.0.1", 0), _Keeping)
    serving.daemon_threads = True
    Thread(target=serving.serve_forever, daemon=True).start()
    print(serving.server_address[1], flush=True)
    sys.stdin.read()
    print(sum([spans for spans, _ in COUNTS]), sum([size for _, size in COUNTS]))


if __name__ == "__main__":
    main()
