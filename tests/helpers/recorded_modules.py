"""Modules as people write them, and their ranges."""

from __future__ import annotations

import pytest

from otel_recfn.model.batch import Event
from otel_recfn.model.events import ALL_SCOPES_MASK
from otel_recfn.pytorch.modules import ModuleRanges
from otel_recfn.recording.recorder import recorder
from otel_recfn.sources.protocol import Wanted

torch = pytest.importorskip("torch")
nn = torch.nn

X = torch.ones(2, 3)
"""An input for them."""


class Recording:
    """A recorder that records, with hooks on it."""

    def __init__(self) -> None:
        self.recorder = recorder
        self.ranges = ModuleRanges()
        self.recorder.start(ALL_SCOPES_MASK, 1 << 20)
        self.ranges.enable(Wanted())

    def events(self, *, close_open: bool = False) -> list[Event]:
        """What closed since the last call, in the order of the begins."""
        return sorted(
            self.recorder.drain(close_open=close_open).events(), key=lambda event: event.event_id
        )

    def lines(self) -> list[tuple[str, str]]:
        """Name, indented by its depth, and module path."""
        depth: dict[int, int] = {0: -1}
        lines = []
        for event in self.events():
            depth[event.event_id] = depth[event.parent] + 1
            lines.append(
                (
                    "  " * depth[event.event_id] + event.name.removeprefix("nn.Module: "),
                    event.module,
                )
            )
        return lines
