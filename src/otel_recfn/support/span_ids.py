"""Span ids from event ids, so that a child can name its parent's span before the parent's row was
seen.

    span id = mix(event id XOR key)

``mix`` is a bijection of 64 bits: an xor with the own upper half and a multiplication by an odd
number, each of which can be undone, twice. Different events therefore have different span ids.
Since ``mix(0) == 0``, the only input that would give the invalid span id 0 is the key itself; the
key has its top bit set and event ids are below 2**63, so it never occurs.

The key is random per process, and anew in a forked child: the n-th event of two processes in one
trace have unrelated ids. It doesn't come from ``random``, which programs seed alike in every
process.
"""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

from otel_recfn.support.forks import Order, around_forks

_MASK = (1 << 64) - 1
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""Odd, so that multiplying by them modulo 2**64 can be undone; from the finalizer of splitmix64."""
_HALF = 32
_key = 0


def rekey() -> None:
    """Make span ids that have nothing to do with those before, by a random key with its top bit
    set.
    """
    global _key
    _key = secrets.randbits(63) | 1 << 63


def current_key() -> int:
    """The key of this process, for span ids that are made natively."""
    return _key


def span_id(event_id: int) -> int:
    """The span id of an event."""
    mixed = event_id ^ _key
    for factor in _FACTORS:
        mixed = ((mixed ^ mixed >> _HALF) * factor) & _MASK
    return mixed ^ mixed >> _HALF


def span_ids(event_ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The span ids of a column of events."""
    mixed: NDArray[np.uint64] = event_ids ^ np.uint64(_key)
    for factor in _FACTORS:
        mixed ^= mixed >> np.uint64(_HALF)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(_HALF)
    return mixed


rekey()
around_forks(Order.SPAN_IDS, in_child=rekey)
