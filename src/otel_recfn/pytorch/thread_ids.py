"""RecordFunction's logical ids of threads, which PyTorch gives from when torch is imported on.

Each thread keeps the id that it has first: one that asked, or recorded, before that keeps the
recorder's.
"""

from __future__ import annotations

import ctypes
import sys

from otel_recfn import _native
from otel_recfn.pytorch.late_import import is_imported

CURRENT_THREAD_ID = "_ZN2at14RecordFunction15currentThreadIdEv"
"""``at::RecordFunction::currentThreadId``, which Python can't call otherwise."""

_asked = False


def follow_torch() -> None:
    """Have PyTorch give the ids from now on, if torch is imported.

    Whoever may be the first to need an id calls it before.
    """
    global _asked
    if _asked or not is_imported("torch"):
        return
    _asked = True
    try:
        function = getattr(ctypes.CDLL(sys.modules["torch"]._C.__file__), CURRENT_THREAD_ID)
    # An unusual build: PyTorch gives them once its operators are observed.
    except (AttributeError, OSError, TypeError):
        return
    _native.follow_torchs_thread_ids(ctypes.cast(function, ctypes.c_void_p).value or 0)
