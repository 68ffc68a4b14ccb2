"""The slices that Chrome traces have for the program's spans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from helpers.trace_files import events_in, read_trace
from otel_recfn.support.span_log import LONGEST_DELAY_NS


def span_slices(path: Path) -> dict[str, dict[str, Any]]:
    """The slices by name; a begin has what its end says, too."""
    found: dict[str, dict[str, Any]] = {}
    for event in events_in(path, "Xb"):
        if "span_id" in event["args"] and "Event id" not in event["args"]:
            assert event["name"] not in found, "a span has two slices"
            found[event["name"]] = event
    for end in events_in(path, "e"):
        if end["name"] in found:
            found[end["name"]]["dur"] = end["ts"] - found[end["name"]]["ts"]
    return found


def assert_times(path: Path, each: dict[str, Any], span: ReadableSpan) -> None:
    """Check that a slice begins and ends as the span did."""
    begin_ns = read_trace(path)["baseTimeNanoseconds"] + 1000 * each["ts"]
    assert abs(begin_ns - (span.start_time or 0)) <= LONGEST_DELAY_NS
    assert abs(begin_ns + 1000 * each["dur"] - (span.end_time or 0)) <= LONGEST_DELAY_NS
