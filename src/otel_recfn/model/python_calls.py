"""The choice of Python and C calls to record: ``profile(python_calls=PythonCalls(include=["my_app"]))``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PythonCalls:
    """A choice of calls that become ranges. The calls that are left out cost less, too.

    A module is named with its dots (``"torch.nn"``, ``"__main__"``) and stands for what is in it and below it; a path has a
    slash, or is that of a ``.py`` file, and may be as it is shown in names (``"torch/nn"``). What a function calls that is left
    out is shown in what is around it; C functions belong to the Python function that calls them.

    Args:
        include: modules and paths whose functions are shown; none: all.
        exclude: modules and paths whose functions are not shown, also where ``include`` names them.
        min_duration_ns: shorter calls are left out, unless they were open when the recorder was read (every 100 to 250 ms).
        max_depth: how many calls may be shown within each other, from where tracing began; None: any number.
        c_calls: whether calls of C functions are shown.
        call_sites: whether each call says the line that called it, as ``call_site`` of events and in Chrome traces.

    Raises:
        ValueError: a value of another kind.
    """

    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    min_duration_ns: int = 0
    max_depth: int | None = None
    c_calls: bool = True
    call_sites: bool = False

    def __post_init__(self) -> None:
        for name in ("include", "exclude"):
            object.__setattr__(self, name, _texts(name, getattr(self, name)))
        if not _is_number(self.min_duration_ns, 0):
            raise ValueError(
                f"min_duration_ns={self.min_duration_ns!r}; a whole number of nanoseconds from 0"
            )
        if self.max_depth is not None and not _is_number(self.max_depth, 1):
            raise ValueError(f"max_depth={self.max_depth!r}; None or a whole number from 1")
        for name in ("c_calls", "call_sites"):
            if not isinstance(value := getattr(self, name), bool):
                raise ValueError(f"{name}={value!r}; True or False")


def together(asked: Iterable[PythonCalls]) -> PythonCalls:
    """The choice of every call that one of them includes; all calls if they differ, or if there are none."""
    choices = set(asked)
    return (
        choices.pop()
        if len(choices) == 1
        else PythonCalls(call_sites=any(each.call_sites for each in choices))
    )


def places_of(names: Iterable[str]) -> tuple[str, ...]:
    """The files, and folders with a slash at their end, that hold the functions of these modules and paths.

    Those of modules are as names of files are shown: without the folder of ``sys.path`` that they are in.
    """
    return tuple(
        [
            place
            for name in names
            for place in (_of_path(name) if _is_path(name) else _of_module(name))
        ]
    )


def _of_path(name: str) -> tuple[str, ...]:
    if name.startswith("<"):  # CPython's name for code without a file
        return (name,)
    absolute = os.path.abspath(os.path.expanduser(name))
    paths = dict.fromkeys(
        [absolute, os.path.normpath(name)]
    )  # a relative one may be written as in names of ranges
    return tuple(
        [
            place
            for path in paths
            for place in ((path,) if path.endswith(".py") else (path, path + os.sep))
        ]
    )


def _of_module(name: str) -> tuple[str, ...]:
    if name == "__main__":
        file = getattr(sys.modules.get(name), "__file__", None)
        return (file, os.path.abspath(file)) if isinstance(file, str) else ()
    path = name.replace(".", os.sep)
    return (path + ".py", path + os.sep)


def _is_path(name: str) -> bool:
    return os.sep in name or name.endswith(".py") or name.startswith("<")


def _texts(name: str, value: object) -> tuple[str, ...]:
    texts = None if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    if texts is None or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"{name}={value!r}; a list of modules and paths")
    return texts


def _is_number(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 62


ALL_CALLS = PythonCalls()
