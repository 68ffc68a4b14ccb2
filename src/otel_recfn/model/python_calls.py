"""Which Python and C calls to record: ``profile(python_calls=PythonCalls(include=["my_app"]))``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PythonCalls:
    """A choice of the calls that are recorded as ranges. Calls that are left out cost less.

    A module has dots in its name (``"torch.nn"``, ``"__main__"``) and stands for itself and its
    submodules. A path has a slash or ends in ``.py``, and may be written as names of ranges show it
    (``"torch/nn"``). If a function is left out, the functions that it calls are shown in the range
    that encloses it. C functions are included with the Python function that calls them.

    Args:
        include: modules and paths whose functions are shown. Empty: all.
        exclude: modules and paths whose functions are not shown, even if ``include`` names them.
        min_duration_ns: shorter calls are left out, except those that were open when the recorder
            was read (every 100 to 250 ms).
        max_depth: the maximum number of nested calls that are shown, counted from where tracing
            began. None: no limit.
        c_calls: whether calls of C functions are shown.
        call_sites: whether each call has the line that called it, as ``call_site`` in events and
            ``Call site`` in Chrome traces.

    Raises:
        ValueError: a value isn't allowed.
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


def common_choice(asked: Iterable[PythonCalls]) -> PythonCalls:
    """The choice for captures that run at once: their common one, or all calls if they differ or
    if there are none.
    """
    choices = set(asked)
    return (
        choices.pop()
        if len(choices) == 1
        else PythonCalls(call_sites=any(each.call_sites for each in choices))
    )


def function_paths(names: Iterable[str]) -> tuple[str, ...]:
    """The files and folders (with a slash at the end) of the functions in these modules and paths.

    Files of modules are written as names of ranges show them: relative to their ``sys.path`` entry.
    """
    return tuple(
        [
            entry
            for name in names
            for entry in (_path_entries(name) if _is_path(name) else _module_entries(name))
        ]
    )


def _path_entries(name: str) -> tuple[str, ...]:
    if name.startswith("<"):  # CPython's name for code without a file
        return (name,)
    absolute = os.path.abspath(os.path.expanduser(name))
    # A relative one may be written as in names of ranges.
    paths = dict.fromkeys([absolute, os.path.normpath(name)])
    return tuple(
        [
            entry
            for path in paths
            for entry in ((path,) if path.endswith(".py") else (path, path + os.sep))
        ]
    )


def _module_entries(name: str) -> tuple[str, ...]:
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


def _is_number(value: object, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value < 1 << 62


ALL_CALLS = PythonCalls()
