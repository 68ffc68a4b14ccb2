"""Asks ``examples/serve.py`` many times, and checks that every request arrived with its operators.

    python scripts/serve_requests.py --requests 50 --at-once 1 8

First all requests one after the other, then as many again, some at once. What the example wrote is
then read: in each request's trace no span may lack its parent, and spans and folded ranges together
have to be as many as the same request had when it was asked for alone. It prints how many spans a
request took, and how many ranges these tell of. The exit code is 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "serve.py"
FOLDED = "recfn.unit.folded.count"
START_SECONDS = 300


@dataclass
class Trace:
    """What was written of one trace."""

    request: str = ""
    ids: set[str] = field(default_factory=set)
    parents: set[str] = field(default_factory=set)
    spans: int = 0
    """Of ranges."""
    folded: int = 0

    @property
    def ranges(self) -> int:
        """How many it tells of."""
        return self.spans + self.folded

    @property
    def orphans(self) -> int:
        """Spans whose parent is nowhere."""
        return len(self.parents - self.ids)

    def take(self, span: dict[str, Any], ours: bool) -> None:
        """One span more."""
        attributes = {one["key"]: one["value"] for one in span["attributes"]}
        self.ids.add(span["spanId"])
        if span.get("parentSpanId"):
            self.parents.add(span["parentSpanId"])
        else:
            self.request = span["name"]
        if ours:
            self.spans += "recfn.scope" in attributes
            self.folded += int(attributes.get(FOLDED, {"intValue": 0})["intValue"])


def free_port() -> int:
    """One that nothing listens on."""
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return int(own.getsockname()[1])


def ask(port: int) -> None:
    """One request."""
    with urlopen(
        f"http://127.0.0.1:{port}/write?prompt=the%20owl&letters=20", timeout=60
    ) as answer:
        answer.read()


def wait_until_it_serves(server: subprocess.Popen[bytes], port: int) -> None:
    """It trains a little first."""
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if server.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{EXAMPLE} doesn't serve") from None
            time.sleep(0.1)


def serve(folder: Path, options: argparse.Namespace) -> Path:
    """The file of spans."""
    port = free_port()
    command = [
        sys.executable,
        str(EXAMPLE),
        "--port",
        str(port),
        "--output",
        str(folder),
        "--train-steps",
        "5",
    ]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_it_serves(server, port)
        for at_once in options.at_once:
            with ThreadPoolExecutor(at_once) as clients:
                list(clients.map(ask, [port] * options.requests))
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()
    return folder / "serve-spans.jsonl"


def spans_of(file: Path) -> Iterator[tuple[dict[str, Any], bool]]:
    """Each span, and whether it is ours."""
    for line in file.read_text().splitlines():
        for scope in [
            scope for one in json.loads(line)["resourceSpans"] for scope in one["scopeSpans"]
        ]:
            for span in scope["spans"]:
                yield span, scope["scope"].get("name") == "otel_recfn"


def requests_in(file: Path) -> list[Trace]:
    """The traces of requests, in the order of the file."""
    traces: dict[str, Trace] = {}
    for span, ours in spans_of(file):
        traces.setdefault(span["traceId"], Trace()).take(span, ours)
    return [trace for trace in traces.values() if trace.request.startswith("GET /write")]


def faults(traces: list[Trace], expected: int) -> list[str]:
    """What is not as it has to be."""
    found = []
    if len(traces) != expected:
        found.append(f"{len(traces)} requests arrived of {expected}")
    orphans = sum([trace.orphans for trace in traces])
    if orphans:
        found.append(f"{orphans} spans lack their parent")
    counts = sorted({trace.ranges for trace in traces})
    if len(counts) != 1 or not counts[0]:
        found.append(f"the same request was told with {counts} ranges")
    return found


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        traces = requests_in(serve(Path(folder), options))
    spans = sorted([trace.spans for trace in traces])
    if traces:
        print(
            f"{len(traces)} requests of {traces[-1].ranges:,} ranges, with {spans[0]} to"
            f" {spans[-1]} spans of them"
        )
        print(f"the median request has {spans[len(spans) // 2]}, all together {sum(spans):,}")
    found = faults(traces, options.requests * len(options.at_once))
    print("\n".join(found) or "every request has all its ranges, and every span its parent")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
