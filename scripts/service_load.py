"""Asks a FastAPI service many times at once, and checks that every range arrived below the request
that it was recorded in.

    python scripts/service_load.py --requests 10000 --at-once 16 --slow-every 500

A request records ranges in its handler, in ``asyncio.to_thread`` and in a background task, which
has a span of its own; how many, and that they took long, follows from its number. What arrives is
counted by trace: spans and folded ranges together have to be exactly the ranges of that request,
what is below an ordinary span has to keep to ``ordinary_span_budget``, and below that of a slow
request the range that took long has to be there. The exit code is 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import median

import uvicorn
from fastapi import BackgroundTasks, FastAPI
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from otel_recfn import OtelRecordFunctionInstrumentor, record_function

FOLDED = "recfn.unit.folded.count"
ORDINARY_BUDGET = 50
PARTS = ("handler", "thread", "background")
RANGES, RANGES_BELOW = 10, 8
"""Of each part: so many ranges with so many in each."""
PART = 1 + RANGES * (1 + RANGES_BELOW)
SLOW_SECONDS = 1.0
"""Longer than a busy machine lets ordinary requests take."""
DETAILED = 3
"""The first requests."""
UNUSUAL_BY_CHANCE = 2 / 100
"""So many requests may be unusual beside those just before them and not beside all."""


def work(part: str, slow: bool) -> None:
    """Some ranges."""
    with record_function(part):
        for number in range(RANGES):
            with record_function(f"{part} {number}"):
                for below in range(RANGES_BELOW):
                    with record_function(f"step {below}"):
                        pass
        if slow:
            time.sleep(SLOW_SECONDS)


def make_app(slow_every: int) -> FastAPI:
    """The service."""
    app = FastAPI()

    @app.get("/work/{number}")
    async def answer(number: int, tasks: BackgroundTasks) -> int:
        slow = number % slow_every == slow_every - 1
        work("handler", False)
        await asyncio.to_thread(work, "thread", slow)
        tasks.add_task(work, "background", False)
        return number

    return app


@dataclass
class Request:
    """What arrived of one request."""

    number: int = -1
    kept: Counter[str] = field(default_factory=Counter)
    """Spans of ranges, by the name of the part that they are in."""
    folded: int = 0
    parents: dict[int, int] = field(default_factory=dict)
    ranges: list[int] = field(default_factory=list)
    """The span ids of those that are of a range."""
    names: dict[int, str] = field(default_factory=dict)
    took_ns: dict[str, int] = field(default_factory=dict)
    """How long the request and its background task took."""

    def orphans(self) -> int:
        """Spans whose parent didn't arrive."""
        return sum([parent not in self.names for parent in self.parents.values()])

    def count_parts(self) -> None:
        """Which part each span of a range is in, once all have arrived."""
        for span_id in self.ranges:
            while self.names.get(span_id) not in (*PARTS, None):
                span_id = self.parents.get(span_id, 0)
            self.kept[self.names.get(span_id, "nothing")] += 1


class Arrived(SpanExporter):
    """What arrived, by trace."""

    def __init__(self) -> None:
        self.requests: dict[int, Request] = {}

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            self._take(span)
        return SpanExportResult.SUCCESS

    def _take(self, span: ReadableSpan) -> None:
        context = span.get_span_context()
        attributes = span.attributes or {}
        request = self.requests.setdefault(context.trace_id, Request())
        request.names[context.span_id] = span.name
        took_ns = (span.end_time or 0) - (span.start_time or 0)
        if span.parent is not None:
            request.parents[context.span_id] = span.parent.span_id
            if span.name.startswith("BackgroundTask"):
                request.took_ns["background"] = took_ns
        else:
            request.took_ns["asked"] = took_ns
            request.number = int(
                str(attributes.get("http.target") or attributes.get("url.path")).rpartition("/")[2]
            )
        if (
            span.instrumentation_scope is not None
            and span.instrumentation_scope.name == "otel_recfn"
        ):
            if "recfn.scope" in attributes:
                request.ranges.append(context.span_id)
            request.folded += int(str(attributes.get(FOLDED, 0)))


def ask(port: int, numbers: Sequence[int]) -> None:
    """One client: a request after the other."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for number in numbers:
        connection.request("GET", f"/work/{number}")
        answer = connection.getresponse()
        assert (answer.status, int(answer.read())) == (200, number)


def ask_all(port: int, requests: int, at_once: int) -> None:
    """All clients, in this process."""
    with ThreadPoolExecutor(at_once) as clients:
        for done in [
            clients.submit(ask, port, range(first, requests, at_once)) for first in range(at_once)
        ]:
            done.result()


def serve(options: argparse.Namespace, provider: TracerProvider) -> None:
    """Serves until a process of clients has had all answers."""
    app = make_app(options.slow_every)
    FastAPIInstrumentor.instrument_app(
        app, tracer_provider=provider, exclude_spans=["receive", "send"]
    )
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    clients = [
        "--ask",
        str(port),
        "--requests",
        str(options.requests),
        "--at-once",
        str(options.at_once),
    ]
    try:
        subprocess.run([sys.executable, __file__, *clients], check=True)
    finally:
        server.should_exit = True
        thread.join()


def ordinary_above(requests: Collection[Request]) -> int:
    """How many requests and background tasks took less than twice the median, and have more
    spans than ordinary ones may.
    """
    above = 0
    for kind, parts in (("asked", ("handler", "thread")), ("background", ("background",))):
        arrived = [request for request in requests if kind in request.took_ns]
        usual_ns = median([request.took_ns[kind] for request in arrived])
        for request in arrived:
            kept = sum([request.kept[part] for part in parts])
            above += kept > ORDINARY_BUDGET and request.took_ns[kind] < 2 * usual_ns
    return above


def faults(arrived: Arrived, options: argparse.Namespace) -> list[str]:
    """What is not as it has to be; of each kind the first."""
    found: dict[str, str] = {}
    for request in arrived.requests.values():
        slow = request.number % options.slow_every == options.slow_every - 1
        request.count_parts()
        summary = (
            f"request {request.number}: {dict(request.kept)} spans of ranges, {request.folded}"
            " folded"
        )
        if request.orphans():
            found.setdefault("orphans", f"{summary}; {request.orphans()} parents are missing")
        if len(request.ranges) + request.folded != PART * len(PARTS):
            found.setdefault("ranges", f"{summary}; it recorded {PART * len(PARTS)}")
        if slow and not request.kept["thread"]:
            found.setdefault("slow", f"{summary}; it was slow")
    above = ordinary_above(arrived.requests.values())
    if above > 2 * DETAILED + options.requests * UNUSUAL_BY_CHANCE:
        found["ordinary"] = (
            f"{above:,} requests and background tasks are ordinary and have more spans than"
            " those may"
        )
    if len(arrived.requests) != options.requests:
        found["requests"] = f"{len(arrived.requests):,} requests arrived of {options.requests:,}"
    return list(found.values())


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--slow-every", type=int, default=500)
    parser.add_argument("--ask", type=int, metavar="PORT", help="be the clients")
    options = parser.parse_args()
    if options.ask is not None:
        ask_all(options.ask, options.requests, options.at_once)
        return 0
    provider = TracerProvider()
    arrived = Arrived()
    provider.add_span_processor(BatchSpanProcessor(arrived))
    instrumentor = OtelRecordFunctionInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    began = time.monotonic()
    serve(options, provider)
    took = time.monotonic() - began
    instrumentor.uninstrument()
    provider.shutdown()
    kept = sorted([len(request.ranges) for request in arrived.requests.values()])
    print(
        f"{len(kept):,} requests, {len(kept) / took:,.0f} a second; spans of ranges: {kept[0]} to"
        f" {kept[-1]}"
    )
    for name, count in instrumentor.counters().items():
        if count:
            print(f"{name:<40} {count:>14,}")
    found = faults(arrived, options)
    passed = "every range is below its request; ordinary ones keep to their budget, slow ones show"
    print("\n".join(found) or f"{passed} what took long")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
