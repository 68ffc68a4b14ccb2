"""What generated modules import.

_LIB_mylib = Library("mylib", "mylib.kernels:FUNCTIONS")
_OP_add = _LIB_mylib.operator("add", "", {"self": "Tensor", "other": "Tensor"}, ("Tensor",), Recorded("add"))

def add(self, other):
    if not Watched.now:
        return _OP_add.target(self, other)
    return _OP_add.observed((self, other), {})
"""

from otel_recfn.recording.watched import Watched
from otel_recfn.tracing.library import Library, torch_library
from otel_recfn.tracing.operator import Constant, Guard, Option, Recorded

__all__ = ["Constant", "Guard", "Library", "Option", "Recorded", "Watched", "torch_library"]
