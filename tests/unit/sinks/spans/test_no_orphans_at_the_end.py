"""What the end has still to write comes although there was no memory for it a few times: no later call would write it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from explored import NoMemory
from test_no_orphans import REQUEST, Sent, new_provider, program

from otel_recfn.model.batch import NO_CONTEXT, Batch, SpanContextRef
from otel_recfn.sinks.spans import folding
from otel_recfn.sinks.spans.budgets import EVERY_RANGE, Volume
from otel_recfn.sinks.spans.sink import SpansSink

pytestmark = pytest.mark.one_python

NEVER = 1 << 30


def closes(sink: SpansSink, left: list[Batch]) -> None:
    for batch in left:
        sink.write(batch)
    sink.close(1.0)


def gives_up(sink: SpansSink, left: list[Batch]) -> None:
    sink.give_up(left, 1.0)
    sink.close(0.0)


def is_superseded(sink: SpansSink, left: list[Batch]) -> None:
    sink._turn.wait()
    assert sink.supersede(lambda: left)
    sink.finish_superseded()


class SoonNoMemory(NoMemory):
    """After so many asked for some, the next few find none."""

    def __init__(self, after: int, times: int) -> None:
        super().__init__()
        self.after, self.times = after, times

    def _asking(self, made: Callable[..., Any]) -> Callable[..., Any]:
        ask = super()._asking(made)

        def count(*arguments: Any, **keywords: Any) -> Any:
            self.after -= 1
            if self.after == 0:
                self.left = self.times
            return ask(*arguments, **keywords)

        return count


@pytest.mark.parametrize("times", [1, 12])
@pytest.mark.parametrize("end", [closes, gives_up, is_superseded])
@pytest.mark.parametrize("ref", [REQUEST, NO_CONTEXT], ids=["in a span", "in a trace of our own"])
@pytest.mark.parametrize("volume", [EVERY_RANGE, Volume(1000)], ids=["every range", "units"])
def test_after_any_that_asked(
    volume: Volume, ref: SpanContextRef, end: Callable[[SpansSink, list[Batch]], None], times: int
) -> None:
    after, reached = 0, True
    while reached:
        after += 1
        for written in range(4):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(folding, "MAX_ROWS_OF_A_UNIT", 2)
                memory, sent, batches = SoonNoMemory(NEVER, times), Sent(), program(ref)
                memory.replace(patch)
                sink = SpansSink(new_provider(sent), volume=volume)
                for batch in batches[:written]:
                    sink.write(batch)
                memory.after = after
                end(sink, batches[written:])
                reached = memory.after <= 0
                sent.assert_no_orphans()
