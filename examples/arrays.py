"""A numpy library with generated wrappers: its operators as spans, as a Chrome trace and as a
graph.

python examples/arrays.py [trace.json]
"""

from __future__ import annotations

import sys

import numpy as np
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import array_operators as ops
from array_operators.kernels import Array
from otel_recfn import OtelRecordFunctionInstrumentor
from otel_recfn.tracing import trace
from tree import print_tree


def attention(queries: Array, keys: Array, values: Array, heads: int = 2) -> Array:
    """Attention of some heads over one sequence, moved to the middle of its range."""
    found = []
    for query, key, value in zip(
        *(ops.split(each, heads, 1) for each in (queries, keys, values)), strict=True
    ):
        weights = ops.softmax(
            ops.mul_(ops.matmul(query, ops.transpose(key)), query.shape[1] ** -0.5)
        )
        found.append(ops.matmul(weights, value))
    result = ops.cat(found, 1)
    low, high = ops.minmax(result)
    middle = ops.mul_(ops.add(low, high), 0.5)
    total = ops.add(ops.zeros([1]), ops.sum(middle, [0], keepdim=True))
    return ops.add(ops.add(result, middle, alpha=-1), total)


def main() -> None:
    """Run it under all three."""
    chrome_trace = sys.argv[1] if len(sys.argv) > 1 else "arrays.json"
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    otel.set_tracer_provider(provider)
    OtelRecordFunctionInstrumentor().instrument(
        chrome_trace=chrome_trace, record_shapes=True, span_budget=None
    )

    inputs = [np.random.default_rng(seed).normal(size=(4, 6)) for seed in range(3)]
    with otel.get_tracer("arrays").start_as_current_span("request"):
        attention(*inputs)
    OtelRecordFunctionInstrumentor().uninstrument()

    finished = spans.get_finished_spans()
    (request,) = (span for span in finished if span.name == "request")
    print_tree(request, finished)
    print(
        f"\n{len(below(request, finished))} operators as spans; the same as a Chrome trace:"
        f" {chrome_trace}\n"
    )
    print(trace(attention, *inputs))


def below(root: ReadableSpan, spans: tuple[ReadableSpan, ...]) -> list[ReadableSpan]:
    """The spans in it."""
    return [
        span
        for span in spans
        if span.parent is not None and span.parent.span_id == root.context.span_id
    ]


if __name__ == "__main__":
    main()
