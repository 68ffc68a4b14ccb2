"""Takes the native twin of planning rows where there is one, unless the user asks for Python's."""

from __future__ import annotations

from otel_recfn.batches.rows.protocol import PlansRows
from otel_recfn.batches.rows.python_rows import PythonRows
from otel_recfn.support.twins import native_twin


def rows_planner() -> PlansRows:
    """Imports: for a thread of the program's."""
    in_python: PlansRows = PythonRows()
    return native_twin(_native_rows, in_python)


def _native_rows() -> PlansRows:
    from otel_recfn.batches.rows.native_rows import NativeRows

    return NativeRows()
