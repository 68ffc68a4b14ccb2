"""What stands for ``record_function``, ``step`` and ``profile`` where nothing can be recorded (``support/native_part.py``)."""

from __future__ import annotations

from typing import Any, TypeVar

from otel_recfn.ranges.signatures import checked
from otel_recfn.support.native_part import native_part

F = TypeVar("F")


class record_function:
    """A range that nobody records: ``with``, ``async with``, or a decorator that returns the function itself."""

    def __init__(self, name: str, args: Any = None) -> None:
        checked(name, args)
        self.name, self.args = name, args

    def __enter__(self: F) -> F:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    async def __aenter__(self: F) -> F:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def __call__(self, func: F) -> F:
        return func


class step(record_function):
    """A step that nobody records."""

    def __init__(self, name: str = "step", number: int | None = None) -> None:
        super().__init__(name)
        self.number = number


def profile(**_: Any) -> None:
    """Raises RecorderUnavailable."""
    native_part()
