"""An HTTP server whose handler runs the small transformer: the operators appear below the request
that caused them.

    python examples/serve.py --port 8000
    curl 'localhost:8000/write?prompt=the%20owl&letters=20'
    python examples/serve.py --once    asks itself once, prints the request's spans as a tree, ends
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import uvicorn
from fastapi import FastAPI, Query
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind

import train
from corpus import decode, encode
from language_model import LanguageModel
from otel_recfn import OtelRecordFunctionInstrumentor
from telemetry import Telemetry

SERVICE = "otel-recfn-serve"


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default %(default)s)"
    )
    parser.add_argument(
        "--port",
        type=int,
        default=8000,
        help="port to listen on, 0 for a free one (default %(default)s)",
    )
    parser.add_argument(
        "--train-steps",
        type=int,
        default=60,
        help="steps of training before it serves (default %(default)s)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo-out"),
        help="folder for files (default %(default)s)",
    )
    parser.add_argument(
        "--chrome-trace", default=None, help="also write a Chrome trace there (.json or .json.gz)"
    )
    parser.add_argument(
        "--once", action="store_true", help="ask itself once on a free port and end"
    )
    return parser.parse_args(argv)


def make_app(model: LanguageModel) -> FastAPI:
    """The server: one page."""
    app = FastAPI(title="A small transformer")

    @app.get("/write")
    def write(prompt: str = "the ", letters: int = Query(20, ge=1, le=200)) -> dict[str, str]:
        return {"text": decode(model.generate(encode(prompt or "\n"), letters))}

    return app


def is_request(span: ReadableSpan) -> bool:
    """Whether it is the server's span of a request."""
    return span.kind is SpanKind.SERVER


def ask(host: str, port: int) -> str:
    """What a client would do."""
    with urlopen(
        f"http://{host}:{port}/write?prompt={quote('the owl')}&letters=3", timeout=60
    ) as answer:
        return answer.read().decode()


def serve_once(app: FastAPI, host: str) -> None:
    """Starts the server on a free port, asks it once, and stops it."""
    server = uvicorn.Server(uvicorn.Config(app, host=host, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, name="server")
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        print("answer:", ask(host, server.servers[0].sockets[0].getsockname()[1]))
    finally:
        server.should_exit = True
        thread.join()


def main(argv: Sequence[str] | None = None) -> None:
    """Trains a little, then serves with everything observed."""
    options = arguments(argv)
    model = train.train(
        train.arguments(["--steps", str(options.train_steps), "--workers", "0"])
    ).eval()
    telemetry = Telemetry(SERVICE, options.output / "serve-spans.jsonl", is_request)
    instrumentor = OtelRecordFunctionInstrumentor()
    instrumentor.instrument(tracer_provider=telemetry.provider, chrome_trace=options.chrome_trace)
    app = make_app(model)
    FastAPIInstrumentor.instrument_app(app, tracer_provider=telemetry.provider)
    try:
        (
            serve_once(app, options.host)
            if options.once
            else uvicorn.run(app, host=options.host, port=options.port)
        )
    finally:
        instrumentor.uninstrument()
        telemetry.close()
    if options.once:
        telemetry.print_tree()
    print(telemetry.where())


if __name__ == "__main__":
    main()
