"""``with step("train", 3):``: the object that programs mark their steps with."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from otel_recfn.model.errors import whole_number
from otel_recfn.model.events import UNNAMED_STEP
from otel_recfn.recording.ranges import is_of_kind, maker, wrap
from otel_recfn.sources.open_steps import ASYNC, OpenStep, close_step, innermost_step, next_number, open_step

F = TypeVar("F", bound=Callable[..., Any])
NUMBERS = 0, (1 << 63) - 1


class step:
    """A step of training, decoding or whatever the program does again and again.

        for number, batch in enumerate(loader):
            with step("train", number):  # also `async with`
                ...

        @step("decode")  # also on `async def`
        def decode(state): ...

    Where a provider takes spans, the step is a span, a child of the current one or a trace of its own, and all that runs in it
    lies below. In Chrome traces and profiles it is a range. One object may be entered again, also while it is open.

    Args:
        name: of the span, the same for each step of its kind. Default: ``step``.
        number: which step it is. Default: steps of a name are counted from 0.

    Raises:
        TypeError: ``name`` is no str.
        SettingError: ``number`` is no whole number from 0 to 2**63 - 1.
    """

    __module__ = "otel_recfn"
    __slots__ = ("_code", "_name", "_number", "_open")
    args = None
    """As ``record_function`` has them: none."""

    def __init__(self, name: str | None = None, number: int | None = None) -> None:
        if name is not None and not isinstance(name, str):
            raise TypeError(f'step takes a name, a str, not {type(name).__name__}: write step("train", number)')
        self._name = UNNAMED_STEP if name is None else name
        self._number = None if number is None else whole_number(number, "number", NUMBERS)
        self._code = ""
        self._open: list[OpenStep] = []

    @classmethod
    def _of_code(cls, name: str, number: int | None, code: str) -> step:
        """A step that is a call of a decorated function."""
        made = cls(name, number)
        made._code = code
        return made

    @property
    def name(self) -> str:
        """The span's name."""
        return self._name

    @property
    def number(self) -> int | None:
        """The number that it was made with."""
        return self._number

    def __enter__(self) -> step:
        self._enter(0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if (left := self._newest()) is not None:
            self._open.remove(left)
            close_step(left, error)

    async def __aenter__(self) -> step:
        self._enter(ASYNC)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    def __call__(self, func: F) -> F:
        return _decorated(type(self), self._name, self._number, func)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle it as one that is not open."""
        return type(self), (self._name, self._number)

    def __repr__(self) -> str:
        return f"step({self._name!r}, {self._number!r})"

    def _enter(self, flags: int) -> None:
        number = next_number(self._name) if self._number is None else self._number
        opened = open_step(self._name, number, flags, self._code)
        if opened is not None:
            self._open.append(opened)

    def _newest(self) -> OpenStep | None:
        """The innermost step that this task entered with this object; else the newest that anybody entered."""
        inner = innermost_step() if self._open else None
        while inner is not None:
            if inner in self._open:
                return inner
            inner = inner.outer
        return self._open[-1] if self._open else None


def _decorated(step: Any, name: str, number: int | None, func: F) -> F:
    if inspect.isclass(func) or not callable(func):
        raise TypeError(f"step decorates functions, not {func!r}")
    for predicate, statement in ((inspect.isgeneratorfunction, "with"), (inspect.isasyncgenfunction, "async with")):
        if is_of_kind(predicate, func):
            raise TypeError(
                f"step decorates no generators, and {getattr(func, '__qualname__', func)} makes them: write "
                f"`{statement} step({name!r}):` inside it, around all of it or around each item, or decorate it with "
                f"record_function({name!r}), whose range encloses what the generator does and not what its consumer does"
            )
    return wrap(maker(step, name, number, func), func)
