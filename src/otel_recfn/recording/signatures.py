"""Stand-ins for ``record_function``, ``step`` and ``batch`` where nothing can be recorded.

``record_function`` itself is a type in C, which makes a stand-in where it is called unusually: that
says what may be given. The native part isn't imported for this.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

F = TypeVar("F")


class record_function:
    """A range that is not recorded: ``with``, ``async with``, or a decorator that returns the
    function itself.
    """

    def __init__(self, name: str, args: Any = None) -> None:
        if not isinstance(name, str):
            raise TypeError(
                f"record_function takes a name, a str, not {type(name).__name__}: write"
                ' record_function("load batch"), also as a decorator: @record_function("load'
                ' batch")'
            )
        if args is not None and not isinstance(args, str):
            raise TypeError(
                f"record_function takes args as a str or None, not {type(args).__name__}: pass"
                " str(args)"
            )
        self.name, self.args = name, args

    def __enter__(self: F) -> F:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        pass

    async def __aenter__(self: F) -> F:
        return self

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None:
        pass

    def __call__(self, func: F) -> F:
        return func


class step(record_function):
    """A step that is not recorded."""

    def __init__(self, name: str = "step", number: int | None = None) -> None:
        super().__init__(name)
        self.number = number


class batch(record_function):
    """A batch that is not recorded."""

    def __init__(self, contexts: Iterable[Any], name: str = "batch") -> None:
        super().__init__(name)
        self.contexts = tuple(contexts)
