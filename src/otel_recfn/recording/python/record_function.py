"""``record_function`` of the Python twin."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from otel_recfn.ranges import aenter, aexit, decorate, open_range
from otel_recfn.support.error_text import error_text

if TYPE_CHECKING:
    from otel_recfn.ranges.protocol import RangeHandle
    from otel_recfn.recording.protocol import Recorder

F = TypeVar("F", bound=Callable[..., Any])


def make_record_function(recorder: Recorder) -> type[Any]:
    """The ``record_function`` class whose ranges ``recorder`` records."""
    namespace = {"_recorder": recorder, "__slots__": (), "__doc__": RecordFunctionBase.__doc__, "__module__": "otel_recfn"}
    return type("record_function", (RecordFunctionBase,), namespace)


class RecordFunctionBase:
    """A range that the program names.

        with record_function("load batch"): ...
        async with record_function("fetch"): ...
        @record_function("load batch")
        def load(): ...

    Every ``with`` and every call of a decorated function is a range of its own; one object may be entered again, also while
    it is open, and left on another thread. An exception marks the range as an error and goes on.

    Args:
        name: the range's name, the same each time for the same piece of code.
        args: as in ``torch.profiler.record_function``; kept as an attribute.
    """

    __slots__ = ("_entered", "_open", "args", "name")
    _recorder: Recorder

    def __init__(self, name: str, args: str | None = None) -> None:
        if not isinstance(name, str):
            raise TypeError(
                f"record_function takes a name, a str, not {type(name).__name__}: "
                'write record_function("load batch"), also as a decorator: @record_function("load batch")'
            )
        if args is not None and not isinstance(args, str):
            raise TypeError(f"record_function takes args as a str or None, not {type(args).__name__}: pass str(args)")
        self.name, self.args = name, args
        self._open: dict[int, list[RangeHandle]] = {}
        """By the ident of the thread that entered: threads may share one object."""
        self._entered: Any = None
        """``record_function.async_range``'s."""

    def __enter__(self) -> RecordFunctionBase:
        self._open.setdefault(get_ident(), []).append(open_range(self))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        handle = self._take_innermost()
        if handle is not None:
            handle.end(error_text(error) if handle.event_id and error is not None else "")

    def _take_innermost(self) -> RangeHandle | None:
        """The newest range that this thread entered; if there is none, the newest of another thread."""
        ident = get_ident()
        mine = self._open.get(ident)
        if mine:
            handle = mine.pop()
            if not mine:
                self._open.pop(ident, None)
            return handle
        for theirs in reversed(list(self._open.values())):
            if theirs:
                return theirs.pop()
        return None  # left more often than entered: that ends nothing

    def __call__(self, func: F) -> F:
        decorated: F = decorate(type(self), self.name, self.args, func)
        return decorated

    async def __aenter__(self) -> RecordFunctionBase:
        await aenter(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await aexit(self, kind, error, traceback)

    def __repr__(self) -> str:
        return f"record_function({self.name!r})" if self.args is None else f"record_function({self.name!r}, {self.args!r})"
