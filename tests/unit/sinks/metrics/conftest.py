"""A metrics sink with a reader of its own."""

from __future__ import annotations

import pytest
from measured_metrics import Ours, reader
from opentelemetry.sdk.metrics.export import AggregationTemporality


@pytest.fixture
def ours() -> Ours:
    return Ours([reader(AggregationTemporality.CUMULATIVE)])
