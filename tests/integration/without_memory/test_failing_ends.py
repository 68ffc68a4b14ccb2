"""Every single allocation of the end of a spans sink fails once: what was sent has its parents all the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HELPERS = Path(__file__).parents[2]

ENDS = """
import logging
import sys
from collections import deque
from functools import partial

logging.disable(logging.CRITICAL)
sys.path.insert(0, "{tests}")
from batches import context, make_batch
from failing_allocations import COARSER, each_failure
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from otel_recfn.model.batch import NO_CONTEXT
from otel_recfn.model.errors import OUT_OF_MEMORY
from otel_recfn.model.events import make_event_id
from otel_recfn.sinks.spans import folding
from otel_recfn.sinks.spans.budgets import EVERY_RANGE, Volume
from otel_recfn.sinks.spans.sink import SpansSink

folding.MAX_ROWS_OF_A_UNIT = 3
volume, end = EVERY_RANGE if sys.argv[1] == "every" else Volume(1000), sys.argv[2]
RESOURCE = Resource({{}})  # looking for one takes longer than all else
REQUEST = context(trace_id=5, span_id=6)
OUTER, MIDDLE, SHOWN = [make_event_id(1, number) for number in (1, 2, 3)]


class Kept(SpanProcessor):  # needs no memory for keeping spans: the list has room for more than it has items
    def __init__(self):
        self.spans = [None] * 2000
        del self.spans[1000:]
        self.on_end = self.spans.append


def batches(ref):
    numbers = iter(range(10, 1000))

    def row(parent, event_id=0):
        return {{"event_id": event_id or make_event_id(1, next(numbers)), "parent": parent, "root": OUTER, "context": ref}}

    first = [row(MIDDLE), row(MIDDLE), row(OUTER), row(MIDDLE)]
    then = [row(MIDDLE), row(OUTER, MIDDLE), row(OUTER), row(0, OUTER)]
    return make_batch(first, [{{"event_id": OUTER, "context": ref}}]), make_batch(then)


def prepare():
    steps.clear()
    made = []
    for ref in (REQUEST, NO_CONTEXT):
        kept, provider = Kept(), TracerProvider(shutdown_on_exit=False, resource=RESOURCE)
        provider.add_span_processor(kept)
        sink = SpansSink(provider, roots_per_second=None, volume=volume)
        first, then = batches(ref)
        sink.write(first)
        steps.extend(steps_of(sink, then))
        made.append((sink, kept))
    return made


def steps_of(sink, then):
    if end == "closed":
        return [partial(sink.write, then), partial(sink.close, 1.0)]
    if end == "given up":
        return [partial(sink.give_up, [then], 1.0), partial(sink.close, 0.0)]
    sink._turn.wait()
    return [partial(supersede, sink, [then].copy), sink.finish_superseded]


def supersede(sink, left):
    assert sink.supersede(left)


def finish():
    while steps:
        try:  # again where there is no memory, as those do who call it
            steps[0]()
        except OUT_OF_MEMORY:
            continue
        steps.popleft()


def orphans(kept):
    spans = kept.spans[1000:]
    there = {{(span.context.trace_id, span.context.span_id) for span in spans}} | {{(5, 6)}}
    assert len(there) == len(spans) + 1
    return [span for span in spans if span.parent and (span.parent.trace_id, span.parent.span_id) not in there]


steps = deque()
for fail in (1, 3):
    tried, made = 0, prepare()
    for number, raised in enumerate(each_failure(finish, fail, fineness=COARSER)):
        tried += 1
        assert raised is None or sys.version_info < (3, 11), (number, repr(raised))
        finish()  # CPython 3.10 needs memory for each call, also for that of what bears having none
        for sink, kept in made:
            assert len(kept.spans) > 1000
            found = orphans(kept)
            assert not found, (fail, number, len(found), [span.name for span in found][:5], sink.counters())
        made = prepare()
    assert tried > 10, (fail, tried)
"""


@pytest.mark.parametrize("end", ["closed", "given up", "superseded"])
@pytest.mark.parametrize("volume", ["every", "units"])
def test_what_was_sent_has_its_parents(run_failing: Callable[..., object], volume: str, end: str) -> None:
    run_failing(ENDS.format(tests=HELPERS), volume, end)
