"""Links of a batch are found once, whoever asks, and none leads to what the asker has lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from batches import MAIN_THREAD, context, make_batch
from otel_recfn import OtelRecordFunctionInstrumentor, record_function
from otel_recfn.batches.links import LinkFinder, Links, SharedLinks
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import make_event_id
from otel_recfn.model.scope import RecordScope
from patience import PATIENCE_S

pytestmark = pytest.mark.one_python

REQUEST = context(0xABC, 0xDEF)
FORWARD: dict[str, Any] = {"event_id": make_event_id(1, 1), "sequence_nr": 5, "name": "forward", "context": REQUEST}
BACKWARD: dict[str, Any] = {
    "event_id": make_event_id(1, 2), "sequence_nr": 5, "scope": RecordScope.BACKWARD_FUNCTION, "context": REQUEST,
    "forward_thread_id": MAIN_THREAD.thread_id, "name": "backward",
}  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often links were found, by the first event of the batch."""
    found: Counter[int] = Counter()
    match = LinkFinder.match

    def counted(self: LinkFinder, batch: Batch) -> Links:
        found[int(batch.event_id[0])] += 1
        return match(self, batch)

    monkeypatch.setattr(LinkFinder, "match", counted)
    return found


def test_who_asks_second_gets_what_the_first_was_told(asked: Counter[int]) -> None:
    links, forward, backward = SharedLinks(), make_batch([FORWARD]), make_batch([BACKWARD])
    first = [links.match(batch) for batch in (forward, backward)]
    assert [links.match(batch) for batch in (forward, backward)] == first
    assert first[1].event_id.tolist() == [FORWARD["event_id"]]
    assert set(asked.values()) == {1}


def test_nothing_is_kept_of_a_batch_that_is_gone() -> None:
    links = SharedLinks()
    for _ in range(3):
        links.match(make_batch([FORWARD]))
    assert len(links._found) == 0


def test_an_instrumented_program_finds_links_once_for_all_its_sinks(asked: Counter[int], tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor = OtelRecordFunctionInstrumentor()
    instrumentor.instrument(tracer_provider=provider, chrome_trace=str(tmp_path / "trace.json"))
    try:
        with record_function("asked for"):
            pass
        assert instrumentor.flush(PATIENCE_S)
        counters = instrumentor.counters()
    finally:
        instrumentor.uninstrument()
    assert counters["chrome_trace.events_written"] == counters["spans.rows"] >= 1
    assert "asked for" in [span.name for span in exporter.get_finished_spans()]
    assert set(asked.values()) == {1}
