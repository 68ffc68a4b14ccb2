"""The runtime of generated trace wrappers: graphs of the operators that a program calls.

from otel_recfn.tracing import trace
graph = trace(model, x)
print(graph)
"""

from otel_recfn.errors import TraceError
from otel_recfn.tracing.graph import Graph, Node, Source, Value, trace

__all__ = ["Graph", "Node", "Source", "TraceError", "Value", "trace"]
