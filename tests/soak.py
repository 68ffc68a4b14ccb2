"""How long the tests run that look for rare moments: ``OTEL_RECFN_SOAK=10`` makes them ten times as long."""

from __future__ import annotations

import os

SOAK = int(os.environ.get("OTEL_RECFN_SOAK", "1"))
