"""What the spans' sink gives up is in the log's account of what was lost, beside what exporters refused."""

from __future__ import annotations

import pytest
from spans_harness import REQUEST, Harness

from batches import make_batch
from otel_recfn.batches.selection import Selected
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import make_event_id
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES
from otel_recfn.session import process_session
from otel_recfn.session.capture import Capture
from otel_recfn.sinks.spans.budgets import Volume
from otel_recfn.sinks.spans.sink import SpansSink
from patience import PATIENCE_S

pytestmark = pytest.mark.one_python

ROWS = 5
FOLDING = Volume(20, 10, 200, 0)
"""They wait for the end of the program's span before it is decided which of them become spans."""


class HasNoTimeLeft:
    """Ends as the sink in the background has a sink end whose exporter hangs until the time is over."""

    name = "spans"

    def __init__(self, inner: SpansSink) -> None:
        self._inner, self.losses, self.counters = inner, inner.losses, inner.counters

    def write(self, batch: Batch) -> None:
        """Late."""

    def flush(self, timeout_s: float) -> bool:
        return True

    def close(self, timeout_s: float) -> None:
        rows = [{"event_id": make_event_id(1, number), "context": REQUEST} for number in range(1, ROWS + 1)]
        self._inner.write(make_batch(rows))
        self._inner.give_up()
        self._inner.close(0.0)

    def after_fork_in_child(self) -> None:
        return None


def test_rows_that_are_given_up_are_told(caplog: pytest.LogCaptureFixture) -> None:
    session = process_session()
    capture = Capture(Selected(), [HasNoTimeLeft(Harness(volume=FOLDING).sink)], buffer_bytes=DEFAULT_BUFFER_BYTES)
    session.start(capture)
    session.stop(capture, PATIENCE_S)
    [told] = [message for message in caplog.messages if message.startswith("otel-recfn lost")]
    assert told.startswith(f"otel-recfn lost spans.failed={ROWS}: ")
    assert "exit_timeout_s" in told
