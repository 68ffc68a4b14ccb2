"""``trace(fn, *args)``: runs a function and records which operators it calls through generated wrappers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from otel_recfn.callbacks import thread_locals
from otel_recfn.model.errors import RecfnError
from otel_recfn.recording.watched import unwatch, watch
from otel_recfn.tracing.graph import Graph
from otel_recfn.tracing.tracer import Tracer


class TraceError(RecfnError, TypeError):
    """A function can't be traced."""


def trace(fn: Callable[..., Any], /, *args: Any, force_outplace: bool = False) -> Graph:
    """Call ``fn(*args)`` in this thread, and record the operators that it calls through generated wrappers.

    The tensors in ``args`` (what has a ``shape`` and a ``dtype``) are the graph's inputs; other values are constants in it, as
    are tensors that come from elsewhere. Work that the function hands to other threads is recorded where it takes along this
    thread's ``ThreadLocalState`` (``propagate`` does). A trace inside a trace has a graph of its own, and the
    outer one has nothing of it.

    Args:
        fn: a function. What it raises goes on to the caller.
        args: for it.
        force_outplace: record operators that write in place, or into ``out``, as those that return their results.

    Raises:
        TraceError: ``fn`` returned a generator or coroutine, which hasn't run.
    """
    tracer = Tracer(force_outplace)
    tracer.add_input(args)
    with tracing_into(tracer):
        result = fn(*args)
        if inspect.isgenerator(result) or inspect.isasyncgen(result) or inspect.isawaitable(result):
            raise TraceError(f"fn returned a {type(result).__name__}, which has not run yet; trace a function that runs it")
        tracer.finish(result)
    return tracer.graph


@contextmanager
def tracing_into(tracer: Tracer) -> Iterator[None]:
    """This thread records into the tracer; then into whatever it did before."""
    state = thread_locals.current()
    outer, state.tracer = state.tracer, tracer
    watching = watch(tracer)
    try:
        yield
    finally:
        state.tracer = outer
        tracer.close()
        unwatch(watching)
