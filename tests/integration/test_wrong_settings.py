"""Wrong settings are named with what is allowed, and end nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_recfn import InMemorySink, OtelRecordFunctionInstrumentor, profile, record_function
from otel_recfn.errors import RecfnError, SettingError
from otel_recfn.settings.variables import wrong_variables


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("OTEL_RECFN_CHROME_TARCE", "did you mean OTEL_RECFN_CHROME_TRACE?"),
        ("OTEL_RECFN_CACHEDIR", "did you mean OTEL_RECFN_CACHE_DIR?"),
        ("OTEL_RECFN_XYZ", "there are OTEL_RECFN_SCOPES, "),
    ],
)
def test_a_variable_that_is_none_of_ours_is_told_with_the_nearest(
    variable: str, expected: str
) -> None:
    [message] = wrong_variables({variable: "1", "OTEL_RECFN_MODULES": "true", "OTHER": "1"})
    assert message.startswith(f"{variable} is not a variable of otel-recfn; {expected}")


def test_it_is_logged(
    instrumentor: OtelRecordFunctionInstrumentor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("OTEL_RECFN_CHROME_TARCE", "trace.json")
    instrumentor.instrument(enabled=False)
    assert "did you mean OTEL_RECFN_CHROME_TRACE?" in caplog.text


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        (
            "OTEL_RECFN_ENABLED",
            "maybe",
            "OTEL_RECFN_ENABLED='maybe' is not allowed; allowed: True or False. It is ignored",
        ),
        (
            "OTEL_RECFN_SPAN_BUDGET",
            "0",
            "OTEL_RECFN_SPAN_BUDGET=0 is not allowed; allowed: None (all) or a whole number",
        ),
        (
            "OTEL_RECFN_SPANS_PER_SECOND",
            "0",
            "OTEL_RECFN_SPANS_PER_SECOND=0.0 is not allowed; allowed: None (all) or how many",
        ),
        (
            "OTEL_RECFN_CHROME_TRACE",
            "trace.txt",
            "OTEL_RECFN_CHROME_TRACE='trace.txt' is not allowed; allowed: None or a path",
        ),
        (
            "OTEL_RECFN_CHROME_TRACE",
            "no/folder/t.json",
            "OTEL_RECFN_CHROME_TRACE: chrome_trace='no/folder/t.json': there is no",
        ),
        (
            "OTEL_RECFN_SPAN_EXPORTER",
            "carrier pigeon",
            "OTEL_RECFN_SPAN_EXPORTER='carrier pigeon' is not allowed; allowed: ",
        ),
    ],
)
def test_a_variable_with_a_wrong_value_is_one_line_and_the_default_holds(
    instrumentor: OtelRecordFunctionInstrumentor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    variable: str,
    value: str,
    expected: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, value)
    sink = InMemorySink()
    instrumentor.instrument(sinks=[sink])
    with record_function("range"):
        pass
    instrumentor.uninstrument()
    assert [event.name for event in sink.events()] == ["range"]
    [line] = [
        record.getMessage() for record in caplog.records if "OTEL_RECFN_" in record.getMessage()
    ]
    assert line.replace(f"{tmp_path}/", "").startswith(expected)
    assert line.endswith("It is ignored, as if it were not set")


def test_a_keyword_with_the_same_value_is_an_error(
    instrumentor: OtelRecordFunctionInstrumentor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OTEL_RECFN_CHROME_TRACE", "trace.json")
    with pytest.raises(SettingError, match="there is no directory"):
        instrumentor.instrument(chrome_trace="no/folder/t.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        (
            {"span_budgets": 3},
            r"^span_budgets is not a setting of otel-recfn; did you mean span_budget\?$",
        ),
        (
            {"xyz": 3},
            (
                "^xyz is not a setting of otel-recfn; there are tracer_provider, meter_provider,"
                " .*open_range_s$"
            ),
        ),
        (
            {"scopes": []},
            (
                r"^scopes=\[\] is not allowed; allowed: all, a set of one or more RecordScopes, or"
                r" names"
            ),
        ),
        (
            {"spans_per_second": 0},
            (
                r"^spans_per_second=0 is not allowed; allowed: None \(all\) or how many a second: a"
                r" number fr"
            ),
        ),
        (
            {"trace_span_budget": 10, "span_budget": 1000},
            (
                "^trace_span_budget=10 is below span_budget=1000; raise trace_span_budget, or lower"
                " span_budget$"
            ),
        ),
        (
            {"trace_span_budget": 10, "span_budget": None},
            "^trace_span_budget=10 is below span_budget=None; raise",
        ),
        (
            {"ordinary_span_budget": 20, "span_budget": 10},
            "^span_budget=10 is below ordinary_span_budget=20; raise",
        ),
    ],
)
def test_keywords_that_can_not_be_followed_are_refused(
    instrumentor: OtelRecordFunctionInstrumentor, keywords: dict[str, Any], expected: str
) -> None:
    with pytest.raises(SettingError, match=expected):
        instrumentor.instrument(**keywords)


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({"whith_stack": True}, r"^profile\(\) has no whith_stack; did you mean with_stack\?$"),
        ({"xyz": True}, r"^profile\(\) has no xyz; there are scopes, record_shapes, "),
        ({"scopes": set()}, r"^scopes=set\(\) is not allowed"),
        (
            {"activities": []},
            r"^activities=\[\] is not allowed; allowed: None or a list of one or more of torch",
        ),
    ],
)
def test_keywords_that_a_profile_can_not_follow_are_refused(
    keywords: dict[str, Any], expected: str
) -> None:
    with pytest.raises(SettingError, match=expected):
        profile(**keywords)


def test_a_trace_budget_alone_bounds_what_requests_get(
    instrumentor: OtelRecordFunctionInstrumentor,
) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor.instrument(tracer_provider=provider, trace_span_budget=10)
    with provider.get_tracer("program").start_as_current_span("request"):
        for number in range(100):
            with record_function(f"range {number}"):
                pass
    instrumentor.uninstrument()
    assert (
        1 <= len([span for span in exporter.get_finished_spans() if span.name != "request"]) <= 10
    )


@pytest.mark.parametrize("seconds", ["a", None, -1, True, float("inf")])
def test_a_flush_for_what_is_no_time_is_refused(
    instrumentor: OtelRecordFunctionInstrumentor, seconds: Any
) -> None:
    with pytest.raises(
        SettingError, match=r"timeout_s=.* is not allowed; allowed: a number of seconds from 0"
    ):
        instrumentor.flush(seconds)


@pytest.mark.parametrize(
    "ask", ["events", "key_averages", "tree", "modules", "optimizers", "counters"]
)
def test_a_profile_that_never_began_has_nothing_to_tell(ask: str, tmp_path: Path) -> None:
    with pytest.raises(RecfnError, match="this profile has not begun"):
        getattr(profile(), ask)()
    with pytest.raises(RecfnError, match="this profile has not begun"):
        profile().export_chrome_trace(tmp_path / "trace.json")
    with pytest.raises(RecfnError, match="this profile has not begun"):
        profile(with_stack=True).export_stacks(tmp_path / "stacks.txt")
    with pytest.raises(RecfnError, match="this profile has not begun"):
        profile().lost  # noqa: B018
    assert list(tmp_path.iterdir()) == []
