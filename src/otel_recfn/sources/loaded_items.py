"""The item that a DataLoader makes in a thread: the index for which it asks its dataset.

    innermost   PIL.Image.open
                Pictures.__getitem__
                <listcomp>                  idx, up to CPython 3.11
    loader's    _MapDatasetFetcher.fetch    idx, from CPython 3.12 on; possibly_batched_index

The index is only in local variables of PyTorch's functions, of ``fetch`` or of a ``Subset`` that it
calls. They are read when a sample is taken, so that nothing of PyTorch is replaced, and nothing is
paid for items that are made fast.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType

MODULES = "torch.utils.data."
"""The beginning of the modules whose functions ask for items."""
FETCHER = "torch.utils.data._utils.fetch", "_MapDatasetFetcher"
"""The module and the class of the loader's function ``fetch``."""
ITEM, BATCH = "idx", "possibly_batched_index"
"""Local variables: the index of an item; in ``fetch`` that of a single item, or those of a
batch.
"""
MAX_FRAMES = 32
"""The maximum number of frames between the innermost one and the loader's."""


def loaded_item(frame: FrameType) -> str:
    """The index of the item that a DataLoader makes in this frame, with the number of its worker:
    ``9 (worker 0)``. Empty if no loader does, or if the index isn't known.
    """
    fetch = _fetch_code()
    frames: list[FrameType] = []
    caller: FrameType | None = frame
    while fetch is not None and caller is not None and len(frames) < MAX_FRAMES:
        frames.append(caller)
        if caller.f_code is fetch:
            return _item_text(frames)
        caller = caller.f_back
    return ""


def _fetch_code() -> CodeType | None:
    """The code of the loader's function; None if no loader was imported, or in another PyTorch."""
    module, name = FETCHER
    fetch = getattr(getattr(sys.modules.get(module), name, None), "fetch", None)
    return getattr(fetch, "__code__", None)


def _item_text(frames: list[FrameType]) -> str:
    """The text for an item, given the frames from the innermost one to the loader's."""
    index = frames[-1].f_locals.get(BATCH)
    for frame in reversed(frames):
        if not str(frame.f_globals.get("__name__")).startswith(MODULES):
            break
        if ITEM in frame.f_locals:
            index = frame.f_locals[ITEM]
            break
    if type(index) not in (int, str):  # others would run code of the program's to become a text
        return ""
    worker = _worker_number()
    return str(index) if worker is None else f"{index} (worker {worker})"


def _worker_number() -> int | None:
    """The number of the loader's worker that this process is; None if it isn't one."""
    worker_info = getattr(sys.modules.get("torch.utils.data"), "get_worker_info", None)
    return getattr(worker_info(), "id", None) if worker_info is not None else None
