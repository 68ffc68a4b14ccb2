"""Spans sinks that end with their test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from otel_recfn.sinks.spans.sink import SpansSink


@pytest.fixture(autouse=True)
def closes_sinks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made: list[SpansSink] = []
    initialize = SpansSink.__init__

    def noted(self: SpansSink, *arguments: Any, **keywords: Any) -> None:
        initialize(self, *arguments, **keywords)
        made.append(self)

    monkeypatch.setattr(SpansSink, "__init__", noted)
    yield
    for sink in made:
        sink.close(0.0)
