"""Loads the compiled observer into the process and switches it.

The library is loaded once per process and never unloaded: PyTorch caches pointers to its callbacks in every thread.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from pathlib import Path
from typing import NamedTuple

from otel_recfn.model.errors import ObserverUnavailable, RecfnError
from otel_recfn.model.events import EventSource, RecordScope
from otel_recfn.pytorch import details, gpu_times, observer_build
from otel_recfn.pytorch.backward_passes import BackwardPasses
from otel_recfn.pytorch.future_callbacks import FutureCallbacks
from otel_recfn.recording.recorder import Recorder
from otel_recfn.sources.protocol import Source, Wanted
from otel_recfn.support.forks import ForkSafeLock

log = logging.getLogger("otel_recfn")


class ObserverStatus(NamedTuple):
    """What a user wants to know about the observer."""

    loaded: bool
    enabled: bool
    path: str
    """The loaded library; empty before it is."""
    features: str
    """Which details of this torch the library found, by their names in ``details.py``, with a minus sign before those that it
    didn't; empty before it is loaded."""
    reason: str
    """Why it isn't loaded; empty where it is, or where nobody asked for it yet."""


class _Loaded(NamedTuple):
    library: ctypes.CDLL
    path: Path


_loading = ForkSafeLock()
_loaded: _Loaded | None = None
_warned: set[str] = set()


class TorchObserver(Source):
    """PyTorch's RecordFunction as a source. ``enable`` and ``disable`` from any thread; neither raises into the host."""

    name = "observer"
    announces: EventSource | None = EventSource.TORCH
    needs: str | None = "torch"

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._backward_passes = BackwardPasses(recorder)
        self._future_callbacks = FutureCallbacks()
        self._enabled = False
        self._scopes = 0
        self._reason = ""

    @property
    def enabled(self) -> bool:
        """Whether operators are announced to the recorder now."""
        return self._enabled

    def announces_user_ranges(self) -> bool:
        """Whether PyTorch's own ``record_function`` ranges are announced now."""
        return self._enabled and bool(self._scopes & 1 << RecordScope.USER_SCOPE)

    def prepare(self) -> bool:
        """What takes long: build and load the library. Where that can't be, warns once and returns False."""
        try:
            self.ensure_loaded()
        except (RecfnError, OSError) as error:
            self._reason = str(error)
            _warn_once(f"PyTorch operators are not observed, everything else is: {error}")
            return False
        return True

    def enable(self, wanted: Wanted) -> None:
        """Observe from now on, with what is wanted. Where that can't be, warns once; ``enabled`` tells.

        Where profiler runs are told apart, a begin outside every other range looks which run its thread works for.
        """
        if not self.prepare():
            return
        try:
            _call(_library(), "recfn_observer_enable", int(wanted.extras))
        except (RecfnError, OSError) as error:
            self._reason = str(error)
            _warn_once(f"PyTorch operators are not observed, everything else is: {error}")
            return
        _library().recfn_observer_watch_profilers(int(wanted.profilers))
        self._backward_passes.watch()
        self._future_callbacks.watch()
        self._enabled, self._scopes, self._reason = True, wanted.scopes, ""

    def disable(self) -> None:
        """Observe nothing more. The library stays loaded."""
        if self._enabled:
            self._enabled = False
            self._backward_passes.leave()
            self._future_callbacks.leave()
            try:
                _call(_library(), "recfn_observer_disable")
            except ObserverUnavailable as error:
                _warn_once(f"PyTorch's observer could not be switched off: {error}")

    def ensure_loaded(self) -> None:
        """Build the library if needed, load it and tie it to the recorder; at once where that's done already.

        Raises:
            ObserverUnavailable: that can't be here.
            CacheUnsafe: the cache of built libraries can't be trusted.
        """
        if "torch" not in sys.modules:
            raise ObserverUnavailable("torch is not imported in this process yet; import it first")
        _load_once(self._recorder.core_api_address())
        self._recorder.default_node_id()  # PyTorch and the recorder tell each other what they know

    def status(self) -> ObserverStatus:
        """What is loaded and switched on now."""
        if _loaded is None:
            return ObserverStatus(False, False, "", "", self._reason)
        return ObserverStatus(True, self._enabled, str(_loaded.path), _features(_loaded.library), self._reason)


def set_profiler(profiler: int) -> None:
    """Mark the calling thread, and what PyTorch does for it elsewhere (backward passes, ``torch.jit.fork``), as working for
    that profiler run from here on; 0 for none. Does nothing where the library isn't loaded."""
    try:
        if _loaded is not None:
            _call(_loaded.library, "recfn_observer_set_profiler", profiler)
    except ObserverUnavailable as error:
        _warn_once(f"PyTorch's operators are not told apart by profiler run: {error}")


def keep_memory(keep: bool) -> None:
    """Whether memory that PyTorch allocates and frees in the calling thread between operators is recorded too, from now on.

    Who asks for it must call ``step_aside`` before torch.profiler starts in the thread, which refuses to start otherwise. Does
    nothing where the library isn't loaded.
    """
    try:
        if _loaded is not None:
            _call(_loaded.library, "recfn_observer_keep_memory", int(keep))
    except ObserverUnavailable as error:
        _warn_once(f"memory is recorded within PyTorch's operators only: {error}")


def step_aside() -> None:
    """Leave the calling thread's memory to the profiler that is about to start there, until it has ended."""
    if _loaded is not None:
        _loaded.library.recfn_observer_step_aside()


def loaded_library() -> ctypes.CDLL | None:
    """The library, if it was loaded."""
    return _loaded.library if _loaded is not None else None


def _load_once(core_api: int) -> None:
    global _loaded
    with _loading:
        if _loaded is not None:
            return
        opened = observer_build.load(observer_build.TORCH_OBSERVER, _open)
        library = opened.library
        attached = library.recfn_observer_attach(core_api)
        if attached == 2:
            raise ObserverUnavailable(
                "the recorder was compiled from another version of otel-recfn's headers than the observer; reinstall otel-recfn"
            )
        if attached != 0:
            raise ObserverUnavailable("there is no memory left to register what has to be done around a fork; free some")
        details.tell_losses(_features(library), details.OPERATORS)
        _loaded = opened


def _open(path: Path) -> _Loaded:
    library = ctypes.CDLL(str(path))
    library.recfn_observer_attach.argtypes = [ctypes.c_void_p]
    library.recfn_observer_enable.argtypes = [ctypes.c_int]
    library.recfn_observer_set_profiler.argtypes = [ctypes.c_uint32]
    library.recfn_observer_watch_profilers.argtypes = [ctypes.c_int]
    library.recfn_observer_watch_profilers.restype = None
    library.recfn_observer_keep_memory.argtypes = [ctypes.c_int]
    library.recfn_observer_step_aside.argtypes = []
    library.recfn_observer_step_aside.restype = None
    gpu_times.declare(library)
    library.recfn_observer_features.restype = ctypes.c_char_p
    library.recfn_observer_last_error.restype = ctypes.c_char_p
    return _Loaded(library, path)


def _features(library: ctypes.CDLL) -> str:
    return (library.recfn_observer_features() or b"").decode("ascii", "replace")


def _library() -> ctypes.CDLL:
    if _loaded is None:
        raise ObserverUnavailable("the torch observer is not loaded; call ensure_loaded() first")
    return _loaded.library


def _call(library: ctypes.CDLL, function: str, *arguments: int) -> None:
    code = getattr(library, function)(*arguments)
    if code != 0:
        message = (library.recfn_observer_last_error() or b"no message").decode("utf-8", "replace")
        raise ObserverUnavailable(f"{function} failed with code {code}: {message}; run `otel-recfn doctor`")


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        log.warning(message)
