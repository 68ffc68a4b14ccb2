"""Takes the native twin of planning rows where there is one, unless the user asks for Python's."""

from __future__ import annotations

from otel_recfn.batches.rows.protocol import PlansRows
from otel_recfn.batches.rows.python_rows import PythonRows
from otel_recfn.support.twins import wanted_twin


def rows_planner() -> PlansRows:
    """Imports: for a thread of the program's. ``recording/backend.py`` says why there is no native one."""
    if wanted_twin() != "python":
        try:
            from otel_recfn.batches.rows.native_rows import NativeRows
        except ImportError:  # no compiler where this was installed
            pass
        else:
            return NativeRows()
    return PythonRows()
