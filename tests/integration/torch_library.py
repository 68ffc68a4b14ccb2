"""A library of C++ that uses PyTorch, as tests need to call what Python has no door to."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

QUICK = ("-O0", "-DAT_PER_OPERATOR_HEADERS", "--param", "ggc-min-expand=1000", "--param", "ggc-min-heapsize=2097152")
"""Headers of PyTorch's don't read those of all operators then, which these need not, and GCC looks for no garbage."""


def built_with_torch(source: Path, folder: Path, standard: str) -> ctypes.CDLL:
    """The library that a source becomes, of this standard of C++."""
    import torch

    built, root = folder / f"{source.stem}.so", Path(torch.__file__).parent
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
    where = ["-I", str(root / "include"), "-L", str(root / "lib"), "-ltorch_cpu", "-lc10"]
    subprocess.run(
        ["g++", f"-std={standard}", *QUICK, "-fPIC", "-shared", abi, str(source), *where, "-o", str(built)], check=True
    )
    return ctypes.CDLL(str(built))
