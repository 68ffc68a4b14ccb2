"""The runtime of generated trace wrappers: graphs of the operators that a program calls.

from otel_recfn.tracing import trace
graph = trace(model, x)
print(graph)
"""

from otel_recfn.errors import RecorderUnavailable, TraceError
from otel_recfn.support.native_part import placeholders

try:
    from otel_recfn.tracing.graph import Graph, Node, Source, Value, trace
except RecorderUnavailable:  # the other names can be imported, and raise when they are used
    globals()["__getattr__"] = placeholders(["Graph", "Node", "Source", "Value", "trace"])

__all__ = ["Graph", "Node", "Source", "TraceError", "Value", "trace"]
