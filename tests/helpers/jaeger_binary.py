"""The Jaeger that ``OTEL_RECFN_JAEGER`` names; empty where there is none.

The variable is taken away for all tests: `instrument()` warns of variables of ours that it doesn't
know.
"""

from __future__ import annotations

import os

JAEGER = os.environ.pop("OTEL_RECFN_JAEGER", "")
