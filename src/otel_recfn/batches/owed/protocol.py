"""The contract of finding what is owed, which both twins keep."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.uint64]
StillOwed = Callable[[Ids, Ids, Ids], Ids]
"""Of ranges that were owed, of ranges around rows that have come, and of the ids of rows that have come: what is owed now.

Each once: first what was not owed before, in ascending order, then what was, as it stood. 0, which is around outermost rows, is
none.
"""
