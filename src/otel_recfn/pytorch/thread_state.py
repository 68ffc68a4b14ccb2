"""Has PyTorch hand on what belongs to a thread: to autograd's workers, ``torch.jit.fork`` and ``at::launch``.

PyTorch keeps Python objects in its thread-local state, by name, and gives that to whatever works for the thread.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from otel_recfn.pytorch import details
from otel_recfn.runtime.carried import Carried, carry_with

KEY = "otel_recfn"


class TorchState:
    """The calling thread's state of PyTorch, as a place for one of our objects (see ``carried.Carrier``)."""

    def __init__(self, torch_c: Any) -> None:
        self._has, self._get, self._stash = torch_c._is_key_in_tls, torch_c._get_obj_in_tls, torch_c._stash_obj_in_tls
        self._remove = getattr(torch_c, "_remove_obj_from_tls", None)
        self._takes_reference = True
        kept = Carried()
        before = sys.getrefcount(kept)
        self._stash(KEY, kept)
        if sys.getrefcount(kept) == before:  # PyTorch 2.4 takes none to what it keeps, and gives one back all the same
            self._takes_reference = False
            _take_reference(kept)

    def get(self) -> Carried | None:
        """See Carrier."""
        return self._get(KEY) if self._has(KEY) else None

    def put(self, state: Carried | None) -> None:
        """See Carrier."""
        if state is not None or self._remove is None:
            if not self._takes_reference:
                _take_reference(state)
            self._stash(KEY, state)
        elif self._has(KEY):
            self._remove(KEY)


def _take_reference(kept: object) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def carry_with_torch() -> None:
    """From now on PyTorch hands the state on. torch has been imported."""
    if details.find("carries") is not None:
        carry_with(TorchState(sys.modules["torch"]._C))
