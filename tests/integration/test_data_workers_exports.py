"""What the workers of a DataLoader export with ``span_exporter``: each range once, however
workers begin and end.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import pytest

from helpers.otlp_server import OtlpServer
from helpers.prepared_programs import PreparedPrograms
from helpers.timeouts import PATIENCE_S

pytestmark = [pytest.mark.torch, pytest.mark.one_python]

EPOCHS = {"fork": 2, "fork persistent": 2, "spawn": 1, "spawn persistent": 2, "forkserver": 1}
"""By kind of worker; each one of spawned workers that don't persist would import torch again."""
WAYS = {"otlp-http": tuple(EPOCHS), "otlp-grpc": ("fork", "spawn persistent")}
PROGRAM = (
    f"EPOCHS = {EPOCHS}"
    + """
import sys
import torch
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from torch.utils.data import DataLoader, Dataset, _utils
from otel_recfn import OtelRecordFunctionInstrumentor, record_function

# A worker that takes longer to end is killed, and a busy machine may need seconds.
_utils.MP_STATUS_CHECK_INTERVAL = 300
trace.set_tracer_provider(TracerProvider())
OtelRecordFunctionInstrumentor().instrument(
    span_exporter=sys.argv[1], span_budget=None, roots_per_second=None, exit_timeout_s=300
)

class Items(Dataset):
    def __init__(self, kind):
        self.kind = kind
    def __len__(self):
        return 4
    def __getitem__(self, index):
        with record_function("item of " + self.kind):
            return torch.ones(2) * index

if __name__ == "__main__":
    for kind in sys.argv[2:]:
        method, *persistent = kind.split()
        with trace.get_tracer("program").start_as_current_span("epoch") as epoch:
            loader = DataLoader(
                Items(kind), num_workers=2 if method == "fork" else 1,
                multiprocessing_context=method, persistent_workers=bool(persistent),
            )
            assert sum([len(list(loader)) for _ in range(EPOCHS[kind])]) == 4 * EPOCHS[kind]
        print(kind, "%016x" % epoch.get_span_context().span_id, sep=":", flush=True)
        del loader
    with record_function("afterwards"):
        pass
"""
)


class Span(NamedTuple):
    trace_id: str
    span_id: str
    name: str
    parent: str
    linked: tuple[str, ...]
    is_root: bool
    """Whether it says so."""


class Exported(NamedTuple):
    """What a program exported."""

    spans: dict[str, Span]
    epochs: dict[str, str]
    """The span that the iterator was made in, by kind of worker."""

    def workers(self, kind: str) -> list[Span]:
        """What the items of this kind lie in."""
        parents = {span.parent for span in self.spans.values() if span.name == f"item of {kind}"}
        return [self.spans[each] for each in parents]


@pytest.fixture(scope="module")
def exported(
    tmp_path_factory: pytest.TempPathFactory, with_torch: PreparedPrograms
) -> dict[str, Exported]:
    """By way out."""
    folder = tmp_path_factory.mktemp("programs")
    program = folder / "program.py"
    program.write_text(PROGRAM)
    found = {}
    for way, kinds in WAYS.items():
        with OtlpServer(way.removeprefix("otlp-")) as server:
            environment = {**os.environ, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": server.endpoint}
            ended = with_torch.run(program, (way, *kinds), environment, PATIENCE_S)
            assert ended.returncode == 0
            spans = _by_id(_received(server))
        found[way] = Exported(spans, dict(line.split(":") for line in ended.stdout.splitlines()))
    return found


def _received(server: OtlpServer) -> Iterable[Span]:
    for span in server.spans:
        linked = tuple(link.span_id.hex() for link in span.links)
        is_root = any(pair.key == "recfn.root" for pair in span.attributes)
        yield Span(
            span.trace_id.hex(),
            span.span_id.hex(),
            span.name,
            span.parent_span_id.hex(),
            linked,
            is_root,
        )


def _by_id(spans: Iterable[Span]) -> dict[str, Span]:
    found = list(spans)
    by_id = {span.span_id: span for span in found}
    assert len(by_id) == len(found)
    return by_id


@pytest.mark.parametrize("way", list(WAYS))
def test_each_range_of_a_worker_arrives_once_and_the_program_still_exports(
    way: str, exported: dict[str, Exported]
) -> None:
    spans = exported[way].spans
    names = Counter([span.name for span in spans.values()])
    assert {name: count for name, count in names.items() if name.startswith("item of")} == {
        f"item of {kind}": 4 * EPOCHS[kind] for kind in WAYS[way]
    }
    assert names["afterwards"] == 1
    assert {span.parent for span in spans.values()} - {""} <= {
        *spans,
        *exported[way].epochs.values(),
    }


@pytest.mark.parametrize(
    ("way", "kind"), [(way, kind) for way, kinds in WAYS.items() for kind in kinds]
)
def test_where_the_ranges_of_a_worker_stand(
    way: str, kind: str, exported: dict[str, Exported]
) -> None:
    """Below the span in which the iterator was made, or, where they outlive that, linked to it."""
    epoch = exported[way].epochs[kind]
    workers = exported[way].workers(kind)
    parent, linked = ("", (epoch,)) if "persistent" in kind else (epoch, ())
    numbers = (0, 1) if kind.split()[0] == "fork" else (0,)
    assert {span.name for span in workers} == {f"DataLoader worker {number}" for number in numbers}
    assert {(span.parent, span.linked, span.is_root) for span in workers} == {
        (parent, linked, not parent)
    }
