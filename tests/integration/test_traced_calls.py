"""``python_calls=True``: calls in spans, Chrome traces and profiles; where tracing ends beside
calls, and in a forked child.
"""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

from helpers.example_counts import SOAK
from helpers.exported_traces import Traces
from otel_recfn import PythonCalls, profile, record_function
from otel_recfn.model.events import EventSource


def load() -> int:
    return len("batch")


def train() -> None:
    with record_function("load batch"):
        load()


def names_above(span: ReadableSpan, spans: dict[int, ReadableSpan]) -> list[str]:
    names = []
    while span.parent is not None and span.parent.span_id in spans:
        span = spans[span.parent.span_id]
        names.append(span.name)
    return names


def test_calls_are_spans() -> None:
    traces = Traces(python_calls=True)
    traces.serve(train)
    traces.instrumentor.uninstrument()
    spans = {span.context.span_id: span for span in traces.spans()}
    [called] = [span for span in spans.values() if span.name.endswith(": load")]
    ancestor_names = names_above(called, spans)
    assert ancestor_names[0] == "load batch"
    assert ancestor_names[1].endswith(": train")
    assert ancestor_names[2] == "request"
    attributes = dict(called.attributes or {})
    assert attributes["code.function.name"] == "load"
    assert attributes["code.line.number"] == load.__code__.co_firstlineno
    assert str(attributes["code.file.path"]).endswith("test_traced_calls.py")
    [c_function] = [
        span
        for span in spans.values()
        if span.name == "<built-in function len>" and span.parent == called.context
    ]
    assert (c_function.attributes or {})["code.function.name"] == "<built-in function len>"
    assert "code.file.path" not in (c_function.attributes or {})


class Kept:
    """What a program makes, calls and drops."""

    def method(self) -> None:
        pass


def made_objects() -> list[object]:
    """Objects of each kind that calls are made of, after a call of each."""
    namespace: dict[str, Any] = {"__name__": "made"}
    exec("def function(): pass\ndef generator(): yield\nclass Kind(list): pass", namespace)
    function = namespace["function"]
    generator = namespace["generator"]
    kind = namespace["Kind"]
    module = ModuleType("made")
    kept = Kept()
    c_object = kind()
    function()
    list(generator())
    kept.method()
    c_object.append(1)
    return [function, function.__code__, generator.__code__, kind, c_object, module, kept]


@pytest.mark.parametrize("call_sites", [False, True])
def test_nothing_lives_longer_because_its_calls_are_traced(call_sites: bool) -> None:
    with profile(python_calls=PythonCalls(call_sites=call_sites)) as prof:
        dropped = [weakref.ref(each) for each in made_objects()]
        gc.collect()
        alive = [each() for each in dropped if each() is not None]
    assert alive == []
    assert "<string>(1): function" in {event.name for event in prof.events()}


def test_captures_that_ask_for_none_see_none() -> None:
    with profile() as without, profile(python_calls=True) as with_calls:
        train()
    assert [(event.name, event.parent, event.caller) for event in without.events()] == [
        ("load batch", 0, 0)
    ]
    assert EventSource.PYTHON_CALL in {event.source for event in with_calls.events()}


def test_the_parent_of_a_call_in_a_span_is_the_enclosing_call_or_range() -> None:
    tracer = TracerProvider().get_tracer("program")

    def serve() -> None:
        with tracer.start_as_current_span("request"):
            load()
            with record_function("range"), tracer.start_as_current_span("inner"):
                load()

    with profile(python_calls=True) as prof:
        serve()
        with tracer.start_as_current_span("outermost"):  # in a call that had begun before
            load()
    by_id = {event.event_id: event for event in prof.events()}
    enclosing = [
        by_id[event.parent].name.rpartition(": ")[2]
        for event in by_id.values()
        if event.name.endswith(": load")
    ]
    assert enclosing == [
        "serve",
        "range",
        "test_the_parent_of_a_call_in_a_span_is_the_enclosing_call_or_range",
    ]
    for event in by_id.values():
        has_source = [
            each.source == EventSource.PYTHON_CALL
            for each in (event, by_id.get(event.parent, event))
        ]
        assert not all(has_source) or event.caller == event.parent, event.name


@pytest.mark.torch
@pytest.mark.parametrize("modules", [False, True])
def test_a_module_has_one_range(modules: bool) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    with profile(python_calls=True, modules=modules) as prof:
        model(torch.ones(2, 3))
    by_id = {event.event_id: event for event in prof.events()}
    kinds = [
        event.name.split("_")[0] for event in by_id.values() if event.name.startswith("nn.Module: ")
    ]
    assert kinds == ["nn.Module: Sequential", "nn.Module: Linear", "nn.Module: ReLU"]
    [linear] = [event for event in by_id.values() if event.name == "aten::linear"]
    ancestor_names = []
    while linear.parent:
        linear = by_id[linear.parent]
        ancestor_names.append(linear.name)
    assert ancestor_names[0] == "<built-in function linear>"
    assert ancestor_names[1].endswith(": forward")
    assert [name.split("_")[0] for name in ancestor_names if name.startswith("nn.Module")] == [
        "nn.Module: Linear",
        "nn.Module: Sequential",
    ]


PROGRAM = """
import os, select, signal, threading
from helpers.timeouts import PATIENCE_S

fork_comes, held, forked = threading.Event(), threading.Event(), threading.Event()

def before():
    fork_comes.set()
    assert held.wait(PATIENCE_S)

# The last one before the fork, and the first after it.
os.register_at_fork(before=before, after_in_parent=forked.set)

def hold():
    assert fork_comes.wait(PATIENCE_S)
    with threading._active_limbo_lock:
        held.set()
        assert forked.wait(PATIENCE_S)

from otel_recfn import profile

def work():
    return len("abc")

threading.Thread(target=hold).start()
with profile(python_calls=True) as traced:
    work()
    over, in_child = os.pipe()
    child = os.fork()
    if not child:
        for _ in range(10):
            work()
        os._exit(0)
    os.close(in_child)
    ended = bool(select.select([over], [], [], PATIENCE_S)[0])
    if not ended:
        os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == 0, "the child hung"
    work()
names = [event.name for event in traced.events()]
assert len([name for name in names if "work" in name]) == 2, names
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_does_not_wait_for_a_lock_of_its_parents_threads(
    run_program: Callable[..., Any],
) -> None:
    run_program(PROGRAM)


BUSY = """
import contextvars, sys, threading

from otel_recfn import PythonCalls, profile

calls = PythonCalls(call_sites=sys.argv[2] == "with call sites")
over = threading.Event()
named_by_python = compile("def asked(): pass", "/made/torch/nn/modules/module.py", "exec")

def leaf():
    pass

def generated():
    yield leaf()

def busy():
    namespace = {}
    while not over.is_set():
        exec(named_by_python, namespace)
        namespace["asked"]()
        contextvars.Context().run(leaf)  # its span context is read
        list(generated())

threads = [threading.Thread(target=busy) for _ in range(4)]
for thread in threads:
    thread.start()
sys.setswitchinterval(1e-6)
try:
    for _ in range(int(sys.argv[1])):
        with profile(python_calls=calls, max_events=1000):
            pass
finally:
    over.set()
    for thread in threads:
        thread.join()

def outer():
    leaf()

with profile(python_calls=True) as after:
    outer()
by_id = {event.event_id: event for event in after.events()}
[last] = [event for event in by_id.values() if event.name.endswith("): leaf")]
above = by_id[last.parent]
assert above.name.endswith("): outer"), above.name
assert by_id[above.parent].name.endswith("): <module>"), by_id[above.parent].name
"""


@pytest.mark.parametrize("call_sites", ["with call sites", "without"])
def test_threads_that_are_beginning_calls(run_program: Callable[..., Any], call_sites: str) -> None:
    run_program(BUSY, str(60 * SOAK), call_sites)
