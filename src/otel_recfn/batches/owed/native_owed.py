"""The native twin of finding what is owed. Of many rows it works without the GIL."""

from __future__ import annotations

from typing import Any

import numpy as np

from otel_recfn import _native
from otel_recfn.batches.owed.protocol import Ids


def still_owed_natively(before: Ids, around: Ids, came: Ids) -> Ids:
    """See ``StillOwed``."""
    owed: Any = _native.still_owed(before, around, came)
    return np.frombuffer(owed, np.uint64)
