"""Takes the native twin of finding what is owed where there is one, unless the user asks for Python's."""

from __future__ import annotations

from otel_recfn.batches.owed.protocol import StillOwed
from otel_recfn.batches.owed.python_owed import still_owed_in_python
from otel_recfn.support.twins import native_twin


def owed_finder() -> StillOwed:
    """Imports: for a thread of the program's."""
    in_python: StillOwed = still_owed_in_python
    return native_twin(_native_owed, in_python)


def _native_owed() -> StillOwed:
    from otel_recfn.batches.owed.native_owed import still_owed_natively

    return still_owed_natively
