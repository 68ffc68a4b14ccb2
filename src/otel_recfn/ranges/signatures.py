"""How ``record_function`` and its methods are called: what says so where they are called otherwise.

The type in C comes here with every call that is not the usual one, and takes the arguments that are returned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def checked(name: object, args: object) -> None:
    """Refuse what ``record_function`` can't be made with."""
    if not isinstance(name, str):
        raise TypeError(
            f"record_function takes a name, a str, not {type(name).__name__}: "
            'write record_function("load batch"), also as a decorator: @record_function("load batch")'
        )
    if args is not None and not isinstance(args, str):
        raise TypeError(f"record_function takes args as a str or None, not {type(args).__name__}: pass str(args)")


class record_function:
    """Each method gives its arguments."""

    def __init__(self, name: str, args: str | None = None) -> None:
        checked(name, args)
        self.name, self.args = name, args

    def __enter__(self) -> tuple[()]:
        return ()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> Any:
        return kind, error, traceback

    def __call__(self, func: Callable[..., Any]) -> Any:
        return (func,)

    def __aexit__(self, kind: Any, error: Any, traceback: Any) -> Any:
        return kind, error, traceback


def arguments(method: str, positional: tuple[Any, ...], keywords: dict[str, Any] | None) -> tuple[Any, ...]:
    """What the method was called with, in the order of its parameters.

    Raises:
        TypeError: it can't be called like that.
    """
    if method == "__init__":
        made = record_function(*positional, **(keywords or {}))
        return made.name, made.args
    signature = getattr(record_function, method)
    given: tuple[Any, ...] = signature(None, *positional, **(keywords or {}))
    return given
