"""Our ranges shown to PyTorch's own observers, such as its profilers, while some run: by PyTorch's
``record_function``.

What is ours looks away meanwhile, for it sees the range already. PyTorch's calls two operators, so
it is not used where the program looks at the operators that it calls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any, TypeAlias

from otel_recfn.callbacks.thread_locals import RunningCallback
from otel_recfn.support.logs import log

EndElsewhere: TypeAlias = Callable[[], object]
"""A function that ends the range in PyTorch, once, in any thread."""


def do_nothing() -> None:
    """The end of a range that PyTorch was not shown."""


class TorchObservers:
    """Whether observers of PyTorch's run, which is read at the begin of each range."""

    present = False
    """Whether any runs; ``registry.expose_ranges_to_torch`` sets it."""


def begin_for_others(name: str) -> EndElsewhere:
    """Begin a range, without inputs, for PyTorch's observers. Never raises."""
    try:
        if _program_sees_operators(sys.modules["torch"]):
            return do_nothing
        torchs_range = sys.modules["torch.autograd.profiler"].record_function(
            name.encode("utf-8", "replace").decode()
        )
        with _hidden_from_ours():
            torchs_range.__enter__()
    except Exception as error:  # the program goes on without it
        _warn_once(str(error))
        return do_nothing
    return partial(_end, torchs_range)


def _end(torchs_range: Any) -> None:
    # At the end of the interpreter PyTorch's modules are empty.
    with suppress(Exception), _hidden_from_ours():
        torchs_range.__exit__(None, None, None)


@contextmanager
def _hidden_from_ours() -> Iterator[None]:
    # Imported late, as programs with callbacks alone need no observer.
    from otel_recfn.pytorch.observer import ignore_ranges

    try:
        ignore_ranges(True)
        with RunningCallback():
            yield
    finally:
        ignore_ranges(False)


def _program_sees_operators(torch: Any) -> bool:
    """Whether a graph is traced, or a mode of PyTorch's sees operators."""
    counts = [
        getattr(torch._C, name, None)
        for name in ("_len_torch_dispatch_stack", "_len_torch_function_stack")
    ]
    return bool(torch.jit.is_tracing()) or any(count() for count in counts if count is not None)


@cache
def _warn_once(error: str) -> None:
    log.warning("PyTorch's own profilers don't see some of the program's ranges: %s", error)
