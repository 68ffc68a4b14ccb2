"""Every single allocation around a lock fails once: the lock is free afterwards, and what raised has done nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HELPERS = Path(__file__).parents[2]
LOCKS = """
import itertools
import threading

sys.path.insert(0, "{tests}")
from batches import make_batch
from failing_allocations import with_failures
from otel_recfn.model.errors import OUT_OF_MEMORY
from otel_recfn.recording.trace_states import TraceStates
from otel_recfn.runtime import callback_lists
from otel_recfn.sinks.background_queue import Flush, WorkQueue
from otel_recfn.sinks.otlp.envelope import Request
from otel_recfn.sinks.otlp.outcome import Outcome, Verdict
from otel_recfn.sinks.otlp.request_queue import RequestQueue
from otel_recfn.sinks.spans.promised_traces import PromisedTraces
from otel_recfn.sinks.spans.turn import Turn
from otel_recfn.store.event_store import EventStore
from otel_recfn.support.own_thread import at_work

tuples = []


def failing(work, number):
    def without_freed_tuples():  # Python makes the next ones of those that are freed, which needs no memory
        for _ in range(20):
            tuples.append((work, number, tuples))
        work()

    tuples.extend([(work, number, each) for each in range(3000)])
    return with_failures(without_freed_tuples, number)


def check(work, done=None, other=None):
    for number in itertools.count():
        before = done() if done else 0
        raised, failed = failing(work, number)
        assert raised is None or isinstance(raised, OUT_OF_MEMORY), repr(raised)
        assert not done or done() - before == (raised is None), (number, raised)
        thread = threading.Thread(target=other or work, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive(), (number, raised)
        if not failed:
            assert number > 20, number
            return


def background_put():
    queue = WorkQueue(10**6)
    batch = make_batch([{{}}])
    check(lambda: queue.put_batch(batch), lambda: queue.received, queue.has_room)


def background_flush():
    queue = WorkQueue(10**6)
    check(lambda: queue.put(Flush(0.0)), None, queue.has_room)


def background_room():
    check(WorkQueue(10**6).has_room)


def request_put():
    queue = RequestQueue(10**6)
    check(lambda: queue.put(Request(b"body", 1)), lambda: queue.spans, queue.ask_now)


def request_take():
    queue, taken = RequestQueue(10**6), []
    for _ in range(200):
        queue.put(Request(b"body", 1))
    check(queue.take, lambda: len(queue._sending), queue.ask_now)


def request_settle():
    queue = RequestQueue(10**6)
    for _ in range(200):
        queue.put(Request(b"body", 1))
        queue.take()
    check(lambda: queue.settle(queue._sending[0], Outcome(Verdict.TAKEN)), lambda: queue.counts.exported, queue.ask_now)
    assert queue.spans + queue.counts.exported == 200


def turn():
    turn = Turn()

    def wait():
        turn.wait()
        turn.go_on()

    check(wait, None, Turn.go_on.__get__(turn))


def work_of_a_thread():
    def work():
        with at_work():
            pass

    check(work)


def stored_batches():
    store = EventStore(10**6)
    batch = make_batch([{{}}])
    check(lambda: store.append(batch), lambda: store.counters()["rows"], store.batches)


def trace_states():
    states = TraceStates()
    check(lambda: states.split(states.keep("a=b")))


def promised_traces():
    traces = PromisedTraces()
    traces.publish(1, None)
    check(lambda: traces.trace_of(1, None), None, lambda: traces.decide(1))


def callbacks():
    check(lambda: callback_lists.remove_global(1), None, callback_lists.watch_ranges)


globals()[sys.argv[1]]()
"""


@pytest.mark.parametrize(
    "lock",
    [
        "background_put",
        "background_flush",
        "background_room",
        "request_put",
        "request_take",
        "request_settle",
        "turn",
        "work_of_a_thread",
        "stored_batches",
        "trace_states",
        "promised_traces",
        "callbacks",
    ],
)
def test_a_lock_is_free_again_where_no_memory_was_left(run_failing: Callable[..., object], lock: str) -> None:
    run_failing(LOCKS.format(tests=HELPERS), lock)
