"""Generated wrappers read from one attribute whether a recorder records."""

from __future__ import annotations

import pytest

from otel_recfn.model.events import ALL_SCOPES_MASK
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES
from otel_recfn.recording.watched import Watched, unwatch, watch

pytestmark = pytest.mark.usefixtures("nobody_watches")


def test_it_follows_the_recorder(recorder: Recorder) -> None:
    assert not Watched.now
    for _ in range(2):
        recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES)
        recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES)
        assert Watched.now
        recorder.stop()
        assert not Watched.now


def test_it_is_on_as_long_as_anybody_watches(recorder: Recorder) -> None:
    watch("somebody")
    recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES)
    recorder.stop()
    assert Watched.now
    watch("other")
    unwatch("somebody")
    unwatch("somebody")
    assert Watched.now
    unwatch("other")
    assert not Watched.now
