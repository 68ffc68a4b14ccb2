"""Bad input to ``instrument()`` is refused before anything is opened, and the next, correct call
works.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers.timeouts import PATIENCE_S
from otel_recfn import InMemorySink, OtelRecordFunctionInstrumentor, RecordScope, record_function
from otel_recfn.errors import SettingError
from otel_recfn.settings.table import Settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sinks", 5),
        ("sinks", None),
        ("sinks", [object()]),
        ("tracer_provider", object()),
        ("scopes", {99}),
        ("scopes", [True]),
        ("chrome_trace", "trace.txt"),
        ("chrome_trace", "a\0.json"),
        ("chrome_trace", "\ud800.json"),
        ("span_exporter", "file:spans.jsonl"),
        ("span_exporter", "\ud800"),
        ("roots_per_second", -1),
        ("record_shapes", "yes"),
        ("buffer_bytes", 1),
        ("export_request_bytes", 1023),
        ("export_request_bytes", (64 << 20) + 1),
        ("detail", "high"),
        ("detail", 3),
        ("min_duration_ns", 1),
        ("no_such_setting", 1),
    ],
)
def test_a_refused_call_leaves_nothing_behind(
    instrumentor: OtelRecordFunctionInstrumentor, tmp_path: Path, name: str, value: Any
) -> None:
    path = tmp_path / "trace.json"
    with pytest.raises(SettingError, match=name):
        instrumentor.instrument(**{"chrome_trace": str(path), name: value})
    assert list(tmp_path.iterdir()) == []
    sink = InMemorySink()
    instrumentor.instrument(chrome_trace=str(path), sinks=[sink], modules=False)
    with record_function("after"):
        pass
    instrumentor.uninstrument()
    assert [event.name for event in sink.events()] == ["after"]
    assert [each.name for each in tmp_path.iterdir()] == ["trace.json"]


def test_a_keyword_wins_over_the_environment() -> None:
    environment = {"OTEL_RECFN_SCOPES": "function, user_scope", "OTEL_RECFN_MODULES": "off"}
    assert Settings.resolve({}, environment).scopes == {
        RecordScope.FUNCTION,
        RecordScope.USER_SCOPE,
    }
    assert Settings.resolve({"modules": True}, environment).modules


# As opentelemetry-instrument does.
@pytest.mark.parametrize("automatic", [{}, {"skip_dep_check": True}])
def test_a_wrong_environment_stops_nothing(
    instrumentor: OtelRecordFunctionInstrumentor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    automatic: dict[str, bool],
) -> None:
    monkeypatch.setenv("OTEL_RECFN_SCOPES", "NO_SUCH")
    instrumentor.instrument(**automatic)
    assert ["OTEL_RECFN_SCOPES" in message for message in caplog.messages] == [True]
    assert instrumentor.is_instrumented_by_opentelemetry


def test_no_memory_does_not_stop_other_instrumentations(
    instrumentor: OtelRecordFunctionInstrumentor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def no_memory() -> None:
        raise MemoryError

    monkeypatch.setattr("otel_recfn.instrumentor.native_part", no_memory)
    instrumentor.instrument(skip_dep_check=True)  # as opentelemetry-instrument does
    assert caplog.messages == ["otel-recfn is not instrumenting: there was no memory"]
    assert not instrumentor.is_instrumented_by_opentelemetry
    with pytest.raises(MemoryError):
        instrumentor.instrument()


def test_a_sink_that_exits_is_taken_out_and_the_others_go_on(
    instrumentor: OtelRecordFunctionInstrumentor, caplog: pytest.LogCaptureFixture
) -> None:
    class Exits(InMemorySink):
        name = "exits"

        def write(self, batch: Any) -> None:
            raise SystemExit(3)

    sink = InMemorySink()
    instrumentor.instrument(sinks=[Exits(), sink], modules=False)
    for name in ("first", "second"):
        with record_function(name):
            pass
        instrumentor.flush(PATIENCE_S)
    assert [event.name for event in sink.events()] == ["first", "second"]
    assert caplog.text.count("'exits' failed and was removed") == 1
    assert instrumentor.counters()["exits.dropped.error"] == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_told_once_and_what_it_cost_is_counted(
    instrumentor: OtelRecordFunctionInstrumentor, caplog: pytest.LogCaptureFixture
) -> None:
    class OnFullDisk(InMemorySink):
        name = "on_full_disk"

        def write(self, batch: Any) -> None:
            with open("/dev/full", "wb", buffering=0) as full:
                full.write(b"events")

    instrumentor.instrument(sinks=[OnFullDisk()], modules=False)
    for _ in range(3):
        with record_function("one of three"):
            pass
        instrumentor.flush(PATIENCE_S)
    instrumentor.uninstrument()
    assert caplog.text.count("No space left on device") == 1
    assert "Traceback" not in caplog.text
    assert "on_full_disk.dropped.error=3" in caplog.text


def test_an_instrumentation_that_is_not_enabled_has_no_counters_of_the_last_one(
    instrumentor: OtelRecordFunctionInstrumentor,
) -> None:
    instrumentor.instrument(modules=False)
    with record_function("counted"):
        pass
    instrumentor.uninstrument()
    assert instrumentor.counters()["recorded"] == 1
    instrumentor.instrument(enabled=False)
    assert instrumentor.counters() == {}
    assert not instrumentor.flush(1)
