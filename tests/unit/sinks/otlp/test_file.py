"""OTLP JSON in a file: what is in a line, and what a killed process leaves."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from otlp_plans import plans, target

from otel_recfn import OtelRecordFunctionInstrumentor
from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.model.errors import SettingError
from otel_recfn.sinks.otlp.encoded import encoded
from otel_recfn.sinks.otlp.envelope import Envelope, RequestBuilder
from otel_recfn.sinks.otlp.json_lines import json_line
from otel_recfn.sinks.spans.mapping import SpanMapper
from patience import PATIENCE_S
from thoroughness import examples

pytestmark = pytest.mark.one_python

IDS = {"traceId", "spanId", "parentSpanId"}


def with_hexadecimal_ids(value: Any, key: str = "") -> Any:
    """OTLP writes ids otherwise than Protocol Buffers' JSON does."""
    if isinstance(value, dict):
        return {name: with_hexadecimal_ids(each, name) for name, each in value.items()}
    if isinstance(value, list):
        return [with_hexadecimal_ids(each) for each in value]
    return base64.b64decode(value).hex() if key in IDS else value


@examples(40)
@given(plans())
def test_a_line_is_the_json_of_the_official_message(plan: tuple[SpanPlan, Mapping[int, Mapping[str, Any]]]) -> None:
    where = target()
    spans = SpanMapper(where).spans(*plan)
    builder = RequestBuilder(Envelope(where.resource, where.scope), 1 << 20)
    builder.add(encoded(spans))
    if not builder.spans:
        return
    line = json_line(builder.request().body)
    assert line.count(b"\n") == 1
    assert json.loads(line) == with_hexadecimal_ids(MessageToDict(encode_spans(spans), use_integers_for_enums=True))


def test_requests_of_several_kinds_of_trouble(sending: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "spans.jsonl"
    to = sending(f"file:{file}")
    assert file.read_bytes() == b""  # it is there from the beginning
    for name in ("a", "b"):
        to.send(name, "inner")
        assert to.delivery.flush(PATIENCE_S)
    lines = file.read_text(encoding="utf-8").splitlines()
    assert [span["name"] for line in lines for span in json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]] == [
        "a", "inner", "b", "inner",
    ]  # fmt: skip
    assert to.counts() == {"exported": 4}
    beside = sending(f"file:{file}")
    beside.send("another process's")
    assert beside.delivery.flush(PATIENCE_S)
    assert (tmp_path / f"spans.pid{os.getpid()}.jsonl").exists()
    assert len(file.read_text(encoding="utf-8").splitlines()) == 2


def test_nothing_stays_open_of_a_file_without_spans(tmp_path: Path) -> None:
    instrumentor, file = OtelRecordFunctionInstrumentor(), tmp_path / "spans.jsonl"
    for _ in range(2):
        instrumentor.instrument(span_exporter=f"file:{file}")
        instrumentor.uninstrument()
        assert os.listdir(tmp_path) == ["spans.jsonl"]
    with pytest.raises(SettingError, match="chrome_trace="):
        instrumentor.instrument(span_exporter=f"file:{file}", chrome_trace=tmp_path / "missing" / "trace.json")
    assert os.listdir(tmp_path) == ["spans.jsonl"]


@pytest.mark.parametrize("path", ["", "no/such/folder/spans.jsonl", "folder/"])
def test_a_file_that_cannot_be_written_is_refused(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError, match="span_exporter="):
        OtelRecordFunctionInstrumentor().instrument(span_exporter=f"file:{path}")


PROGRAM = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
from otel_recfn import OtelRecordFunctionInstrumentor, record_function
instrumentor = OtelRecordFunctionInstrumentor()
instrumentor.instrument(span_exporter="file:" + sys.argv[1], span_budget=None, roots_per_second=None)
print("ready", flush=True)
while True:
    for _ in range(50):
        with record_function("x" * 100):
            pass
    instrumentor.flush(10)
"""


def test_a_killed_process_leaves_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "spans.jsonl"
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(file)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        until = time.monotonic() + PATIENCE_S
        while file.stat().st_size < 200_000 and time.monotonic() < until:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    *whole, _cut = file.read_bytes().split(b"\n")
    assert sum([len(json.loads(line)["resourceSpans"]) for line in whole]) >= 5
