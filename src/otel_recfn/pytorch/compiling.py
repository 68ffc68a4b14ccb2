"""The stand-ins that ``torch.compile`` traces for our ranges: as it does for
``torch.profiler.record_function``.

torch.compile knows that one: it skips it, or puts PyTorch's profiler operators into the graph where
PyTorch's setting ``capture_profiler_record_function`` (since 2.12) asks for that. Ours is a type in
C, at which it would break the graph. How to trace a value it looks up in two tables, by the value's
id and by its type, and there we say what to trace instead. The tables
are private to PyTorch: where a later one has them no more, that is logged once, and graphs break at
our ranges.

Nothing is imported for this: the tables are written when the program, or PyTorch, imports
``torch._dynamo``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from otel_recfn.pytorch.details import PYTHON
from otel_recfn.pytorch.late_import import call_at_import
from otel_recfn.recording import watched
from otel_recfn.support.logs import log

LOST = PYTHON["compile_tables"].lost

Trace = Callable[[Any, Any], Any]
"""A function from torch.compile's builder and a value of the program to the variable for it in
the trace.
"""


def trace_as_torchs(record_function: type) -> None:
    """Have the type, and objects of it, traced as PyTorch's ``record_function``."""
    _when_compiling(_write_type, record_function)
    trace_objects_as_torchs(record_function)
    trace_instead(watched.is_traced, watched.return_true)


def trace_objects_as_torchs(range_type: type) -> None:
    """Have objects of the type, which have a ``name`` and ``args``, traced as PyTorch's
    ``record_function``.
    """
    _when_compiling(_write_objects, range_type)


def trace_instead(original: Any, traced: Any) -> None:
    """Have ``traced`` traced in place of ``original``.

    Both are functions or classes at the top level of their modules.
    """
    _when_compiling(_write_other, original, traced)


def _when_compiling(write: Callable[..., None], *arguments: Any) -> None:
    def carefully() -> None:
        try:
            write(*arguments)
        except (AttributeError, KeyError) as error:
            _log_once(f"{type(error).__name__}: {error}")

    call_at_import("torch._dynamo", carefully, LOST)


@cache
def _log_once(error: str) -> None:
    log.warning(
        "this PyTorch's torch.compile works otherwise than those that otel-recfn knows (%s); %s",
        error,
        LOST,
    )


def _dynamo(module: str, name: str) -> Any:
    return getattr(sys.modules[f"torch._dynamo.{module}"], name)


def _torch_record_function() -> Any:
    return sys.modules["torch.autograd.profiler"].record_function


def _write(table: dict[Any, Trace], key: object, trace: Trace) -> None:
    """Write how values with this key are traced.

    If PyTorch lacks something for it then, the graph breaks as without us.
    """

    def trace_or_break_graph(builder: Any, value: Any) -> Any:
        source = builder.source
        try:
            return trace(builder, value)
        except (AttributeError, TypeError) as error:
            _log_once(f"{type(error).__name__}: {error}")
            table.pop(key, None)
            builder.source = source
            return builder._wrap(value)

    table[key] = trace_or_break_graph


def _by_id() -> dict[Any, Trace]:
    table: dict[Any, Trace] = _dynamo("variables.builder", "VariableBuilder")._id_dispatch()
    return table


def _by_type() -> list[dict[Any, Trace]]:
    """The tables by type: PyTorch makes one for its setting ``trace_numpy`` and one without it;
    2.4 has one only.
    """
    builder = _dynamo("variables.builder", "VariableBuilder")
    if hasattr(builder, "_type_dispatch_impl"):
        return [builder._type_dispatch_impl(trace_numpy) for trace_numpy in (False, True)]
    return [builder._type_dispatch()]


def _write_type(record_function: type) -> None:
    context_manager = _dynamo("variables.torch", "TorchCtxManagerClassVariable")
    same = _dynamo("guards", "GuardBuilder").ID_MATCH

    def trace(builder: Any, _value: type) -> Any:
        builder.install_guards(same)
        return context_manager(_torch_record_function(), source=builder.source)

    _write(_by_id(), id(record_function), trace)


def _write_objects(record_function: type) -> None:
    same_type = _dynamo("guards", "GuardBuilder").TYPE_MATCH
    attribute = _dynamo("source", "AttrSource")
    context_manager = _dynamo("variables.torch", "TorchCtxManagerClassVariable")

    def trace(builder: Any, value: Any) -> Any:
        builder.install_guards(same_type)
        sources = {name: attribute(builder.source, name) for name in ("name", "args")}
        attributes = [
            type(builder)(builder.tx, source)(getattr(value, name))
            for name, source in sources.items()
        ]
        return context_manager(_torch_record_function()).call_function(builder.tx, attributes, {})

    for table in _by_type():
        _write(table, record_function, trace)


def _write_other(original: Any, other: Any) -> None:
    same = _dynamo("guards", "GuardBuilder").ID_MATCH
    attribute = _dynamo("source", "AttrSource")

    def trace(builder: Any, _value: Any) -> Any:
        builder.install_guards(same)
        # After a graph break the result is made again, from what is found there.
        builder.source = attribute(builder.tx.import_source(other.__module__), other.__name__)
        return type(builder)(builder.tx, builder.source)(other)

    _write(_by_id(), id(original), trace)
