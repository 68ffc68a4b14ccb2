"""The kinds of legacy events, and of devices whose memory they report."""

from __future__ import annotations

from enum import IntEnum
from functools import cache

from otel_recfn.support.logs import log

CPU_MEMORY = ("cpu", "mkldnn", "ideep")
CUDA_MEMORY = ("cuda", "hip")
"""The kinds of devices whose memory counts as the CPU's, and as the GPU's."""
KIND_WORDS = ("mark", "push", "pop", "memory_alloc")
"""The kinds of events as texts, in the order of EventKind."""


class EventKind(IntEnum):
    """The kind of a legacy event, with PyTorch's values."""

    MARK = 0
    PUSH_RANGE = 1
    POP_RANGE = 2
    MEMORY_ALLOC = 3


@cache
def is_on_cuda(device: str) -> bool | None:
    """Whether memory on this device counts as the GPU's or the CPU's; None for neither, which is
    logged once.
    """
    kind = device.partition(":")[0]
    if kind in CUDA_MEMORY or kind in CPU_MEMORY:
        return kind in CUDA_MEMORY
    log.warning("Unsupported memory profiling device: %s", kind)
    return None
