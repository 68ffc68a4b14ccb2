"""What was not sent before the end is in the log's account of what was lost."""

from __future__ import annotations

import pytest
from spans_harness import REQUEST, Harness

from batches import make_batch
from otel_recfn.batches.selection import Selected
from otel_recfn.model.events import make_event_id
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES
from otel_recfn.session import process_session
from otel_recfn.session.capture import Capture
from otel_recfn.support.own_thread import OwnThread
from patience import PATIENCE_S

pytestmark = pytest.mark.one_python

ROWS = 5


def test_rows_that_are_abandoned_are_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    sink, session = Harness().sink, process_session()
    capture = Capture(Selected(), [sink], buffer_bytes=DEFAULT_BUFFER_BYTES)
    session.start(capture)

    def start(self: OwnThread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(OwnThread, "start", start)
    rows = [{"event_id": make_event_id(1, number), "context": REQUEST} for number in range(1, ROWS + 1)]
    sink.write(make_batch(rows))
    session.stop(capture, PATIENCE_S)
    [told] = [message for message in caplog.messages if message.startswith("otel-recfn lost")]
    assert told.startswith(f"otel-recfn lost spans.abandoned={ROWS}: ")
    assert any("no thread could be had" in message for message in caplog.messages)
