"""The compiled observer as a source: loaded into the process, and switched.

The library is loaded once per process and never unloaded: PyTorch caches pointers to its callbacks
in every thread.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import c_char_p, c_int, c_uint32, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from otel_recfn import _native
from otel_recfn.errors import ObserverUnavailable, RecfnError
from otel_recfn.model.events import EventSource
from otel_recfn.pytorch import details, observer_build
from otel_recfn.pytorch.launches import BackwardPasses, FutureCallbacks
from otel_recfn.pytorch.thread_ids import follow_torch
from otel_recfn.sources.protocol import Source, Wanted
from otel_recfn.support.forks import ForkSafeLock
from otel_recfn.support.logs import log

FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "attach": (c_int, c_void_p),
    "enable": (c_int, c_int),
    "disable": (c_int,),
    "set_profiler": (c_int, c_uint32),
    "watch_profilers": (None, c_int),
    "keep_memory": (c_int, c_int),
    "step_aside": (None,),
    "features": (c_char_p,),
    "last_error": (c_char_p,),
    "ignore_ranges": (None, c_int),
}
"""The argument and result types of the library's functions, by their names after
``recfn_observer_``.
"""


NOT_OBSERVED = "PyTorch operators are not observed, everything else is"

_loading = ForkSafeLock()
_loaded: ctypes.CDLL | None = None


class TorchObserver(Source):
    """PyTorch's RecordFunction as a source.

    ``enable`` and ``disable`` may be called from any thread, and don't raise.
    """

    name = "observer"
    announces: EventSource | None = EventSource.TORCH
    needs: str | None = "torch"

    def __init__(self) -> None:
        self._backward_passes = BackwardPasses()
        self._future_callbacks = FutureCallbacks()
        self.enabled = False
        """Whether operators are announced to the recorder now."""

    def prepare(self) -> bool:
        """Build and load the library, which takes long.

        If that fails, warns once and returns False.
        """
        try:
            self.ensure_loaded()
        except (RecfnError, OSError) as error:
            _warn_once(f"{NOT_OBSERVED}: {error}")
            return False
        return True

    def enable(self, wanted: Wanted) -> None:
        """Observe from now on, with what is wanted.

        If that fails, warns once; ``enabled`` shows it.

        If profiler runs are separated, a begin outside every other range looks up the run that its
        thread works for.
        """
        if (
            not self.prepare()
            or _loaded is None
            or not _call("enable", int(wanted.extras), lost=NOT_OBSERVED)
        ):
            return
        _loaded.recfn_observer_watch_profilers(int(wanted.profilers))
        self._backward_passes.watch()
        self._future_callbacks.watch()
        self.enabled = True

    def disable(self) -> None:
        """Observe nothing more. The library stays loaded."""
        if self.enabled:
            self.enabled = False
            self._backward_passes.leave()
            self._future_callbacks.leave()
            _call("disable", lost="PyTorch's observer could not be switched off")

    def ensure_loaded(self) -> None:
        """Build the library if needed, load it and connect it with the recorder; a RecfnError if
        that fails.
        """
        if "torch" not in sys.modules:
            raise ObserverUnavailable("torch is not imported in this process yet; import it first")
        _load_once(_native.core_api_address())


def set_profiler(profiler: int) -> None:
    """Mark the calling thread, and what PyTorch does for it elsewhere (backward passes,
    ``torch.jit.fork``), as working for that profiler run from here on; 0 for none.

    Does nothing where the library isn't loaded.
    """
    _call("set_profiler", profiler, lost="PyTorch's operators are not told apart by profiler run")


def keep_memory(keep: bool) -> None:
    """Record memory that PyTorch allocates and frees in the calling thread between operators too,
    or no longer.

    Call ``step_aside`` before torch.profiler starts in the thread, else it refuses to. Does nothing
    without the library.
    """
    _call("keep_memory", int(keep), lost="memory is recorded within PyTorch's operators only")


def step_aside() -> None:
    """Leave the calling thread's memory to the profiler that is about to start there, until it
    has ended.
    """
    if _loaded is not None:
        _loaded.recfn_observer_step_aside()


def ignore_ranges(away: bool) -> None:
    """Have the observer not see ranges of PyTorch's ``record_function`` that begin in the
    calling thread, or see them again.
    """
    if _loaded is not None:
        _loaded.recfn_observer_ignore_ranges(int(away))


def loaded_library() -> ctypes.CDLL | None:
    """The library, if it is loaded."""
    return _loaded


def _load_once(core_api: int) -> None:
    global _loaded
    with _loading:
        if _loaded is not None:
            return
        follow_torch()
        library = observer_build.load(observer_build.TORCH_OBSERVER, _open)
        attached = library.recfn_observer_attach(core_api)
        if attached == 2:
            raise ObserverUnavailable(
                "the recorder was compiled from another version of otel-recfn's headers than the"
                " observer; reinstall otel-recfn"
            )
        if attached != 0:
            raise ObserverUnavailable(
                "there is no memory left to register what has to be done around a fork; free some"
            )
        _loaded = library
        details.log_losses(features(), details.OPERATORS)


def _open(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    for name, (result, *arguments) in FUNCTIONS.items():
        function = getattr(library, f"recfn_observer_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def features() -> str:
    """The details of this torch that the loaded library found, by their names in ``details.py``;
    a minus sign before others.
    """
    return _loaded.recfn_observer_features().decode("ascii") if _loaded is not None else ""


def _call(function: str, *arguments: int, lost: str) -> bool:
    """Call a function of the library, if it is loaded.

    If that fails, warns once of what is lost.
    """
    code = getattr(_loaded, f"recfn_observer_{function}")(*arguments) if _loaded is not None else 0
    if _loaded is not None and code != 0:
        message = (_loaded.recfn_observer_last_error() or b"no message").decode("utf-8", "replace")
        _warn_once(
            f"{lost}: recfn_observer_{function} failed with code {code}: {message}; run `otel-recfn"
            " doctor`"
        )
    return code == 0


@cache
def _warn_once(message: str) -> None:
    log.warning(message)
