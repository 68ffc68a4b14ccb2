"""What a recorder imports late, because a program that has ranges and drains nothing doesn't need numpy.

Who drains imports this module at the top of its own. A signal handler that drains while a drain imports would find the modules
half made.
"""

from __future__ import annotations

from contextlib import suppress

import otel_recfn.recording.python.batch
import otel_recfn.recording.python.pairing
import otel_recfn.support.numpy_loops

with suppress(ImportError):  # there is no native part
    import otel_recfn.recording.native_columns  # noqa: F401
