"""What ``torch.distributed.rpc`` runs lies in what was current where the call was made, as it
arrives at an exporter.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
rpc = pytest.importorskip("torch.distributed.rpc")

from opentelemetry import baggage, context, trace  # noqa: E402

from helpers.exported_traces import Traces  # noqa: E402
from helpers.renamed_torch import log_losses_again  # noqa: E402
from otel_recfn import record_function  # noqa: E402
from otel_recfn.pytorch import details  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not rpc.is_available(), reason="this torch has no RPC"),
]

SELF = "worker0"
EACH = ("called", "aten::cos", "called/aten::sin")
"""What a call of ``cosine`` is recorded as."""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[str]:
    """This process, which may call itself."""
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{tmp_path / 'meeting'}")
    rpc.init_rpc(SELF, rank=0, world_size=1, rpc_backend_options=options)
    yield SELF
    rpc.shutdown()


def ids() -> tuple[int, int]:
    current = trace.get_current_span().get_span_context()
    return current.trace_id, current.span_id


def cosine(x: Any) -> tuple[int, int]:
    torch.cos(x)
    with record_function("called"):
        torch.sin(x)
    return ids()


def cosine_by_another_call(x: Any) -> tuple[int, int]:
    with record_function("in between"):
        here = ids()
        assert rpc.rpc_sync(SELF, cosine, args=(x,)) == here
    return ids()


def region_of_baggage() -> object:
    return baggage.get_baggage("region")


def count_calls(traces: Traces) -> Counter[str]:
    """What was called, without the operators by which PyTorch unpacks messages."""
    names = ("called", "aten::cos", "aten::sin")
    return Counter(path for path in traces.all_paths().elements() if path.endswith(names))


def test_calls_lie_in_the_span_or_range_that_makes_them(traces: Traces, worker: str) -> None:
    for name in ("one", "other"):
        with traces.tracer.start_as_current_span(name):
            assert rpc.rpc_sync(worker, cosine, args=(traces.x,)) == ids()
            assert rpc.remote(worker, cosine, args=(traces.x,)).to_here() == ids()
            with record_function("range"):
                waiting = rpc.rpc_async(worker, cosine, args=(traces.x,))
                here = ids()
            assert waiting.wait() == here
    enclosing = {"one": 2, "other": 2, "one/range": 1, "other/range": 1}
    assert count_calls(traces) == {
        f"{outer}/{each}": count for outer, count in enclosing.items() for each in EACH
    }


def test_a_call_in_a_call_lies_in_it(traces: Traces, worker: str) -> None:
    with traces.tracer.start_as_current_span("request"):
        assert rpc.rpc_sync(worker, cosine_by_another_call, args=(traces.x,)) == ids()
    assert count_calls(traces) == {f"request/in between/{each}": 1 for each in EACH}


def test_calls_without_a_span_and_in_one_that_is_not_sampled(traces: Traces, worker: str) -> None:
    assert rpc.rpc_sync(worker, cosine, args=(traces.x,)) == (0, 0)
    unsampled = trace.NonRecordingSpan(trace.SpanContext(7, 8, False, trace.TraceFlags(0)))
    with trace.use_span(unsampled):
        assert rpc.rpc_sync(worker, cosine, args=(traces.x,)) == (7, 8)
    assert count_calls(traces) == {f"operators/{each}": 1 for each in EACH}


def test_baggage_goes_along(traces: Traces, worker: str) -> None:
    token = context.attach(baggage.set_baggage("region", "north"))
    try:
        assert rpc.rpc_sync(worker, region_of_baggage) == "north"
    finally:
        context.detach(token)
    assert rpc.rpc_sync(worker, region_of_baggage) is None


@pytest.mark.parametrize("detail", ["rpc_pickler", "rpc_call"])
def test_without_a_detail_calls_are_as_ever(
    detail: str, worker: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log_losses_again()
    lacking = details.PYTHON[detail]._replace(what="torch.distributed.rpc.internal:_renamed")
    monkeypatch.setattr(details, "PYTHON", {**details.PYTHON, detail: lacking})
    traces = Traces()
    with traces.tracer.start_as_current_span("request"):
        assert rpc.rpc_sync(worker, cosine, args=(traces.x,)) == (0, 0)
    assert count_calls(traces) == {f"operators/{each}": 1 for each in EACH}
    assert lacking.lost in caplog.text


def test_the_pickler_is_put_back(worker: str) -> None:
    before = {**vars(rpc.internal._internal_rpc_pickler)}
    traces = Traces()
    assert vars(rpc.internal._internal_rpc_pickler) != before
    traces.instrumentor.uninstrument()
    assert vars(rpc.internal._internal_rpc_pickler) == before


CALLED = """
import torch
def called(x):
    return torch.cos(x)
"""
PEER = """
import sys
if sys.argv[1] == "without":
    sys.modules["otel_recfn"] = None
import json, torch, torch.distributed.rpc as rpc
if sys.argv[1] == "with":
    from helpers.exported_traces import Traces
    traces = Traces()
options = rpc.TensorPipeRpcBackendOptions(init_method=sys.argv[2])
rpc.init_rpc("peer", rank=1, world_size=2, rpc_backend_options=options)
rpc.shutdown()
if sys.argv[1] == "with":
    traces.instrumentor.uninstrument()
    print(json.dumps([
        [span.name, span.context.trace_id, span.parent and span.parent.span_id]
        for span in traces.spans()
    ]))
"""
CALLER = """
import json, subprocess, sys, torch, torch.distributed.rpc as rpc
from called import called
from helpers.exported_traces import Traces
peer, meeting = sys.argv[1:]
command = [sys.executable, "peer.py", peer, meeting]
child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
options = rpc.TensorPipeRpcBackendOptions(init_method=meeting)
rpc.init_rpc("caller", rank=0, world_size=2, rpc_backend_options=options)
traces = Traces()
with traces.tracer.start_as_current_span("request") as span:
    assert rpc.rpc_sync("peer", called, args=(torch.zeros(2),)).tolist() == [1, 1]
    assert rpc.remote("peer", called, args=(torch.zeros(2),)).to_here().tolist() == [1, 1]
rpc.shutdown()
told = child.communicate()[0]
assert child.returncode == 0
traces.instrumentor.uninstrument()
context = span.get_span_context()
print(json.dumps([context.trace_id, context.span_id, json.loads(told or "[]")]))
"""

Calls = Callable[[str], tuple[int, int, list[Any]]]


@pytest.fixture
def call_peer(run_program: Callable[..., Any], tmp_path: Path) -> Calls:
    """The trace and span id of a caller, and the spans that its peer exports, another process
    with or without us.
    """
    (tmp_path / "called.py").write_text(CALLED)
    (tmp_path / "peer.py").write_text(PEER)
    places = [Path(__file__).parent, Path(__file__).parents[1], tmp_path]

    def call(peer: str) -> tuple[int, int, list[Any]]:
        done = run_program(
            CALLER,
            peer,
            f"file://{tmp_path / 'meeting'}",
            PYTHONPATH=os.pathsep.join(map(str, places)),
        )
        trace_id, span_id, spans = json.loads(done.stdout.splitlines()[-1])
        return trace_id, span_id, spans

    return call


def test_a_call_of_another_process(call_peer: Calls) -> None:
    trace_id, span_id, spans = call_peer("with")
    assert [span[1:] for span in spans if span[0] == "aten::cos"] == [[trace_id, span_id]] * 2


def test_a_peer_without_us_reads_the_calls(call_peer: Calls) -> None:
    assert call_peer("without")[2] == []  # the caller has looked at what it returned
