"""A callback that counts, and an operator to count."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

from helpers.timeouts import PATIENCE_S
from otel_recfn.model.events import RecordScope
from otel_recfn.observing import RecordFunctionCallback


class Counting:
    """Counts begins and ends by name and scope; from any thread, under the GIL."""

    def __init__(self) -> None:
        self.begun: Counter[tuple[str, RecordScope]] = Counter()
        self.ended: Counter[tuple[str, RecordScope]] = Counter()
        self.threads: set[int] = set()
        self.changed = threading.Condition()

    def start(self, function: Any) -> tuple[str, RecordScope]:
        key = function.name(), function.scope()
        self.begun[key] += 1
        self.threads.add(function.thread_id())
        return key

    def end(self, _function: Any, key: tuple[str, RecordScope]) -> None:
        with self.changed:
            self.ended[key] += 1
            self.changed.notify_all()

    def callback(self) -> RecordFunctionCallback:
        return RecordFunctionCallback(self.start, self.end)

    def settle(self) -> None:
        """Work that another thread did is complete a moment before its range ends."""
        deadline = time.monotonic() + PATIENCE_S
        while self.ended != self.begun and time.monotonic() < deadline:
            with self.changed:
                self.changed.wait(0.1)
        assert self.ended == self.begun

    def calls(self) -> int:
        return sum(self.begun.values())

    def names(self) -> Counter[str]:
        names: Counter[str] = Counter()
        for (name, _), count in self.begun.items():
            names[name] += count
        return names


def is_set_to(tensor: Any, times: int = 1) -> None:
    """An operator that calls no other."""
    for _ in range(times):
        tensor.is_set_to(tensor)
