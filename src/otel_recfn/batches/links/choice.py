"""Takes the native twin of finding links where there is one, unless the user asks for Python's."""

from __future__ import annotations

from otel_recfn.batches.links.protocol import MakesLinks
from otel_recfn.batches.links.python_links import PythonLinks
from otel_recfn.support.twins import native_twin


def links_maker() -> MakesLinks:
    """Imports: for a thread of the program's."""
    in_python: MakesLinks = PythonLinks
    return native_twin(_native_links, in_python)


def _native_links() -> MakesLinks:
    from otel_recfn.batches.links.native_links import NativeLinks

    return NativeLinks
