"""The installed torch, by its files: it is never imported, so that an image can be prepared without the time and memory."""

from __future__ import annotations

import importlib.util
import mmap
import re
from dataclasses import dataclass
from pathlib import Path

from otel_recfn.model.errors import ObserverUnavailable


@dataclass(frozen=True)
class TorchInstallation:
    """What the files of the installed torch say."""

    directory: Path
    version: str
    git_version: str
    cxx11_abi: int

    @property
    def include(self) -> Path:
        """Its headers."""
        return self.directory / "include"

    @property
    def lib(self) -> Path:
        """Its shared libraries."""
        return self.directory / "lib"


def find_torch() -> TorchInstallation:
    """The torch that ``import torch`` gives, without importing it.

    Raises:
        ObserverUnavailable: there is none, or it came without headers.
    """
    directory = _torch_directory()
    if not (directory / "include" / "ATen" / "record_function.h").is_file():
        raise ObserverUnavailable(f"torch in {directory} has no C++ headers; install torch from a wheel of pytorch.org or PyPI")
    text = (directory / "version.py").read_text(encoding="utf-8")
    return TorchInstallation(directory, _assigned(text, "__version__"), _assigned(text, "git_version"), _cxx11_abi(directory))


def _torch_directory() -> Path:
    try:
        spec = importlib.util.find_spec("torch")
    except ValueError:  # something in sys.modules poses as torch
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ObserverUnavailable("torch is not installed here; pip install torch")
    return Path(next(iter(spec.submodule_search_locations))).resolve()


def _assigned(text: str, name: str) -> str:
    match = re.search(rf"^{name}\s*(?::[^=]+)?=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return match.group(1) if match else "unknown"


def _cxx11_abi(directory: Path) -> int:
    """Which of libstdc++'s two string types torch was built with: how its own symbols spell std::string tells."""
    try:
        with open(directory / "lib" / "libc10.so", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
            return 0 if image.find(b"14SourceLocationESs") >= 0 else 1
    except (OSError, ValueError):  # macOS has one string type and another file name
        return 1
