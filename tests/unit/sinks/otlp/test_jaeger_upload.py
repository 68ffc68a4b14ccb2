"""What OpenTelemetry's exporter writes of our spans into a file is what *Upload* on Jaeger's
page takes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from test_either_way import rows

from helpers.batches import context, make_batch, open_for_long
from helpers.jaeger_upload import uploaded
from helpers.timeouts import PATIENCE_S
from otel_recfn.model.events import RecordScope, make_event_id
from otel_recfn.sinks.spans.budgets import EVERY_RANGE, Volume
from otel_recfn.sinks.spans.sink import SpansSink


@pytest.mark.parametrize("volume", [EVERY_RANGE, Volume(20, 10, 200, 0)])
def test_jaegers_page_takes_the_file_whole(volume: Volume, tmp_path: Path) -> None:
    file = pytest.importorskip("opentelemetry.exporter.otlp.json.file")
    path = tmp_path / "spans.jsonl"
    provider = TracerProvider(
        shutdown_on_exit=False, resource=Resource.create({"service.name": "train"})
    )
    provider.add_span_processor(SimpleSpanProcessor(file.FileSpanExporter(path)))
    sink = SpansSink(provider, None, volume=volume)
    forward = {
        "event_id": make_event_id(8, 1),
        "name": "aten::mul",
        "sequence_nr": 500,
        "shapes": "[[2,3],[]]",
        "context": context(8, 8),
    }
    backward = {
        "event_id": make_event_id(8, 2),
        "name": "MulBackward0",
        "sequence_nr": 500,
        "scope": RecordScope.BACKWARD_FUNCTION,
        "forward_thread_id": 1,
        "context": context(8, 8),
        "dtypes": '["float",""]',
    }
    sink.write(make_batch([*rows(units=3, ranges=60), forward, backward]))
    sink.write(
        open_for_long(
            make_batch(
                [{"event_id": make_event_id(9, 1), "name": "open", "context": context(7, 7)}]
            )
        )
    )
    assert sink.flush(PATIENCE_S)
    sink.close(PATIENCE_S)
    spans = uploaded(path)
    assert len(path.read_text().splitlines()) > 1
    assert {"outer", "aten::mul", "open", "open for long"} < {span["name"] for span in spans}
    assert any("recfn.unit.top" in str(span) for span in spans) is (volume is not EVERY_RANGE)
    assert any(span["status"].get("code") == 2 and span["events"] for span in spans)
    if volume is EVERY_RANGE:
        [linked] = [span for span in spans if span["name"] == "MulBackward0"]
        assert [link["spanId"] for link in linked["links"]] == [
            one["spanId"] for one in spans if one["name"] == "aten::mul"
        ]
