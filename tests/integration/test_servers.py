"""What a server exports that ends by SIGTERM, as docs/servers.md says."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.one_python

SERVER = """
import asyncio, os, signal, sys
import uvicorn
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from otel_recfn import OtelRecordFunctionInstrumentor, record_function

exporter = ConsoleSpanExporter(formatter=lambda span: span.name + " ")
trace.set_tracer_provider(provider := TracerProvider())
provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000))
instrumentor = OtelRecordFunctionInstrumentor()
instrumentor.instrument(chrome_trace="trace.json", detail="all")

def request():
    with trace.get_tracer("app").start_as_current_span("request"):
        for _ in range(20):
            with record_function("work"):
                pass

async def app(scope, receive, send):
    assert scope["type"] == "lifespan"
    await receive()
    await send({"type": "lifespan.startup.complete"})
    request()
    os.kill(os.getpid(), signal.SIGTERM)
    await receive()
    if sys.argv[1] == "flush":
        await asyncio.to_thread(OtelRecordFunctionInstrumentor().flush, 5.0)
    elif sys.argv[1] == "force_flush":
        provider.force_flush()
    else:
        instrumentor.uninstrument()
        provider.force_flush()
    await send({"type": "lifespan.shutdown.complete"})

uvicorn.run(app, port=0, log_level="warning", lifespan="on")
"""


@pytest.mark.parametrize("how", ["flush", "force_flush", "uninstrument"])
def test_what_a_server_flushes_in_its_lifespan_is_exported(
    run_program: Callable[..., Any], tmp_path: Path, how: str
) -> None:
    pytest.importorskip("uvicorn")
    ended = run_program(SERVER, how, code=-signal.SIGTERM)  # uvicorn raises it again
    assert sorted(ended.stdout.split()) == ["request", *["work"] * 20]
    text = (tmp_path / "trace.json").read_text(encoding="utf-8")
    assert text.count('"work"') == 20
    if how == "uninstrument":
        json.loads(text)
