"""Several stretches of a column, one after the other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int64]


def places_in(begins: Places, lengths: Places) -> Places:
    """The places of all that stands in stretches that begin there and are so long."""
    skipped = np.cumsum(lengths) - lengths
    places: Places = np.arange(int(lengths.sum())) + np.repeat(begins - skipped, lengths)
    return places


def begins_of(ends: Places, which: Places) -> Places:
    """Where these begin of stretches that follow each other and end there."""
    return np.where(which > 0, ends[which - 1], 0)
