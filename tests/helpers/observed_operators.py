"""PyTorch's operators on the process's recorder, without a session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from otel_recfn.model.batch import Event
from otel_recfn.model.events import ALL_SCOPES_MASK, Extra
from otel_recfn.pytorch.observer import TorchObserver
from otel_recfn.recording.recorder import recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES
from otel_recfn.sources.protocol import Wanted


class Observed:
    """What is being recorded; its rows come once, in the order of their begins."""

    def __init__(self) -> None:
        self.recorder = recorder
        self.observer = TorchObserver()

    def start(self, extras: Extra, scopes: int = ALL_SCOPES_MASK) -> None:
        self.recorder.start(scopes, DEFAULT_BUFFER_BYTES, extras)
        self.observer.enable(Wanted(scopes, extras))
        assert self.observer.enabled

    def stop(self) -> None:
        self.observer.disable()
        self.recorder.stop()

    def events(self) -> list[Event]:
        """What closed since it was asked last."""
        return sorted(self.recorder.drain().events(), key=lambda event: event.event_id)


@contextmanager
def observed(extras: Extra = Extra.NONE, scopes: int = ALL_SCOPES_MASK) -> Iterator[Observed]:
    """Operators are recorded with these extras."""
    run = Observed()
    run.recorder.drain(close_open=True)
    run.start(extras, scopes)
    try:
        yield run
    finally:
        run.stop()
        run.recorder.drain(close_open=True)
