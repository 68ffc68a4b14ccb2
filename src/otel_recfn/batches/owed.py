"""Which ranges have begun and have not come yet."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn import _native

Ids = NDArray[np.uint64]


def still_owed(before: Ids, around: Ids, came: Ids) -> Ids:
    """Of ranges that were owed, of ranges around rows that have come, and of the ids of rows that have come: what is owed now.

    Each once: first what was not owed before, in ascending order, then what was, as it stood. 0, which is around outermost
    rows, is none. Of many rows it works without the GIL.
    """
    owed: Any = _native.still_owed(before, around, came)
    return np.frombuffer(owed, np.uint64)
