"""A delivery to a server of the test's, without the long pauses that there are between attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from otlp_plans import plan_of, target

from helpers.batches import context
from otel_recfn.sinks.otlp import delivery
from otel_recfn.sinks.otlp.delivery import otlp_delivery
from otel_recfn.sinks.otlp.encoding import OtlpMapper

MIB = 1 << 20


class Sending:
    """A delivery, and the spans that it is given."""

    def __init__(
        self, exporter: Any, request_bytes: int = MIB, queue_bytes: int = 64 * MIB
    ) -> None:
        delivery = otlp_delivery(exporter, request_bytes, queue_bytes)
        assert delivery is not None
        self.delivery = delivery
        self.sent = 0

    def send(self, *names: str) -> None:
        """Spans of these names, as one request."""
        self.sent += len(names)
        provider = target()
        self.delivery.use(provider)
        self.delivery.send(OtlpMapper(provider).spans(plan_of([_row(name) for name in names])))
        # Spans of another provider go into another request, so that this one is complete.
        self.delivery.use(target())

    def end(self) -> None:
        """Its threads have told what they had to tell, which they do when a flush has returned."""
        self.delivery.remove(process_ends=True)

    def counts(self) -> dict[str, int]:
        """What became of them, and how many wait; without zeros."""
        counters = dict(self.delivery.counters())
        counters["waiting"] = self.sent - sum(counters.values())
        assert min(counters.values()) >= 0
        return {name: count for name, count in counters.items() if count}


def _row(name: str) -> dict[str, Any]:
    return {"name": name, "context": context(1, 2)}


@pytest.fixture
def sending(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Sending]]:
    """Makes deliveries, which end with the test."""
    monkeypatch.setattr(delivery, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(delivery, "LONGEST_PAUSE_S", 0.05)
    made: list[Sending] = []

    def make(*arguments: Any, **keywords: Any) -> Sending:
        made.append(Sending(*arguments, **keywords))
        return made[-1]

    yield make
    for each in made:
        each.delivery.remove(process_ends=True)
