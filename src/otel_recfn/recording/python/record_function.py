"""``record_function`` of the Python twin."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from otel_recfn.ranges import aenter, aexit, decorate, open_range
from otel_recfn.ranges.signatures import checked
from otel_recfn.support.interrupts import raised_by_signal_handler
from otel_recfn.support.stack_trace import failure

if TYPE_CHECKING:
    from otel_recfn.ranges.protocol import RangeHandle
    from otel_recfn.recording.protocol import Recorder

F = TypeVar("F", bound=Callable[..., Any])


def make_record_function(recorder: Recorder) -> type[Any]:
    """The ``record_function`` class whose ranges ``recorder`` records."""
    namespace = {
        "_recorder": recorder,
        "__init_subclass__": classmethod(_refuse_subclass),
        "__slots__": (),
        "__doc__": RecordFunctionBase.__doc__,
        "__module__": "otel_recfn",
    }
    return type("record_function", (RecordFunctionBase,), namespace)


def _refuse_subclass(cls: type[Any], /, **keywords: Any) -> None:
    raise TypeError("type 'otel_recfn.record_function' is not an acceptable base type")


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

    __slots__ = ("_args", "_code", "_entered", "_name", "_open")
    _recorder: Recorder

    def __init__(self, name: str, args: str | None = None) -> None:
        checked(name, args)
        self._name, self._args = name, args
        self._code: str | None = None
        """What it decorates."""
        self._open: dict[int, list[RangeHandle]] = {}
        """By the ident of the thread that entered: threads may share one object."""
        self._entered: Any = None
        """What ``ranges/async_range.py`` keeps here."""

    @classmethod
    def _of_code(cls, name: str, args: str | None, code: str) -> RecordFunctionBase:
        """Of a decorated function."""
        made = cls(name, args)
        made._code = code
        return made

    @property
    def name(self) -> str:
        """The range's name."""
        return self._name

    @property
    def args(self) -> str | None:
        """The ``args`` that it was made with."""
        return self._args

    def __enter__(self) -> RecordFunctionBase:
        handle = None
        try:
            handle = open_range(self)
            self._open.setdefault(get_ident(), []).append(handle)
        except BaseException:  # a signal handler may raise: then there is no __exit__ that would end the range
            if handle is not None:
                self._end_unentered(handle)
            raise
        return self

    def _end_unentered(self, handle: RangeHandle) -> None:
        mine = self._open.get(get_ident(), [])
        if handle in mine:
            mine.remove(handle)
        handle.end()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        taken: list[RangeHandle] = []
        try:
            self._leave(taken, error)
        except BaseException as interruption:
            if not isinstance(interruption, Exception) or raised_by_signal_handler(interruption):  # the range ends all the same
                self._leave(taken, error)
            raise

    def _leave(self, taken: list[RangeHandle], error: BaseException | None) -> None:
        """End the range that this ``with`` entered. ``taken`` has it where an interrupted call took it already."""
        if not taken:
            self._take_innermost(taken)
        for handle in taken:
            handle.end(*failure(error if handle.event_id else None))

    def _take_innermost(self, taken: list[RangeHandle]) -> None:
        """The newest range that this thread entered; if there is none, the newest of another thread."""
        ident = get_ident()
        mine = self._open.get(ident)
        if mine:
            taken.append(mine[-1])
            mine.pop()
            if not mine:
                self._open.pop(ident, None)
            return
        for theirs in reversed(list(self._open.values())):
            if theirs:
                taken.append(theirs.pop())
                return

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

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle it as one that is not open."""
        return type(self), (self.name, self.args)

    def __repr__(self) -> str:
        return f"record_function({self.name!r})" if self.args is None else f"record_function({self.name!r}, {self.args!r})"


for _method in ("__init__", "__enter__", "__exit__", "__call__", "__aenter__", "__aexit__"):
    getattr(RecordFunctionBase, _method).__qualname__ = f"record_function.{_method}"  # errors name what the program called
