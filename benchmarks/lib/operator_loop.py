"""A loop of operators in C++, without Python between them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lib.compilers import compile_with
from torch.utils.cpp_extension import include_paths, library_paths

SOURCE = Path(__file__).resolve().parent / "record_function_loop.cpp"


def loaded_loop(folder: Path) -> ctypes.CDLL:
    """``record_function_loop.cpp``, compiled against this torch, once in a folder."""
    library = folder / "record_function_loop.so"
    if not library.exists():
        _compile(library)
    loop = ctypes.CDLL(str(library))
    loop.time_operators.restype = ctypes.c_double
    return loop


def _compile(library: Path) -> None:
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    includes = [f"-I{path}" for path in include_paths()]
    libraries = [f"-L{path}" for path in library_paths()] + ["-ltorch_cpu", "-lc10"]
    compile_with([abi, "-std=c++20", *includes, str(SOURCE), "-o", str(library), *libraries])


@contextmanager
def empty_pair(loop: Any, *, ids: bool) -> Iterator[None]:
    """The cheapest observer there can be, with RecordFunction's ids or without."""
    loop.add_empty_pair(int(ids))
    try:
        yield
    finally:
        loop.remove_empty_pair()
