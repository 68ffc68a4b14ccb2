"""What spans are called: module calls by their path in the model, or by their class; files and
profiles as torch does.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from opentelemetry import trace  # noqa: E402
from opentelemetry.sdk.metrics import MeterProvider  # noqa: E402
from opentelemetry.sdk.metrics.export import InMemoryMetricReader  # noqa: E402
from opentelemetry.sdk.trace import ReadableSpan  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from helpers.exported_traces import Traces  # noqa: E402
from otel_recfn import OtelRecordFunctionInstrumentor, profile, record_function  # noqa: E402
from otel_recfn.batches.span_names import class_in_name  # noqa: E402
from otel_recfn.cli import main  # noqa: E402

pytestmark = pytest.mark.torch


class Linear(nn.Linear):
    """One whose call is a span: the program sees it as the current one.

    Otherwise a call would be none in a request that took a thousand times as long, which on a busy
    machine may be any.
    """

    def forward(self, x: Tensor) -> Tensor:
        trace.get_current_span()
        return super().forward(x)


class Dropout(nn.Dropout):
    """Likewise."""

    def forward(self, x: Tensor) -> Tensor:
        trace.get_current_span()
        return super().forward(x)


class Doubled(torch.autograd.Function):
    """One whose backward node is a span, likewise."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        trace.get_current_span()
        return gradient * 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return Dropout(0.0)(self.attention(x))  # one that no model has


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def spans_of(net: nn.Module, **settings: Any) -> Sequence[ReadableSpan]:
    """The spans of a call below a request."""
    traces = Traces(budgets={}, **settings)
    try:
        with torch.no_grad():
            traces.serve(lambda: net(torch.ones(2, 4)))
        return traces.spans()
    finally:
        traces.instrumentor.uninstrument()


def called(spans: Sequence[ReadableSpan]) -> set[tuple[str, Any, Any]]:
    """Of module calls the names, the paths and the classes."""
    columns = ("recfn.module", "recfn.module.class")
    calls = [(span.name, *[span.attributes.get(name) for name in columns]) for span in spans]
    return {one for one in calls if one[2] is not None}


@pytest.mark.parametrize("budgets", [{"detail": "all"}, {"detail": "normal"}])
def test_a_module_is_called_by_its_path_and_else_by_its_class(budgets: dict[str, str]) -> None:
    net = Net()
    net(torch.ones(2, 4))
    assert called(spans_of(net, **budgets)) == {
        ("Net", None, "Net"),
        ("layers.0", "layers.0", "Block"),
        ("layers.1", "layers.1", "Block"),
        ("attention", "layers.0.attention", "Linear"),
        ("attention", "layers.1.attention", "Linear"),
        ("Dropout", None, "Dropout"),
    }


class Encoder(nn.Module):
    """One in which a module is called below several others, and a sequence has a name."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.mlp = nn.Sequential(Linear(4, 4), nn.Sequential(Linear(4, 4)))
        self.after = nn.ModuleDict({"norm": Linear(4, 4)})

    def forward(self, x: Tensor) -> Tensor:
        with record_function("part"):
            x = self.mlp(self.block(x))
        trace.get_current_span()
        return self.block.attention(self.after["norm"](x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x)


INSIDE = {
    ("Model", None, "Model"),
    ("encoder", "encoder", "Encoder"),
    ("block", "encoder.block", "Block"),
    ("attention", "encoder.block.attention", "Linear"),
    ("Dropout", None, "Dropout"),
    ("mlp", "encoder.mlp", "Sequential"),
    ("mlp.0", "encoder.mlp.0", "Linear"),
    ("mlp.1", "encoder.mlp.1", "Sequential"),
    ("mlp.1.0", "encoder.mlp.1.0", "Linear"),
    ("after.norm", "encoder.after.norm", "Linear"),
    ("block.attention", "encoder.block.attention", "Linear"),
}


def test_below_a_module_it_is_called_by_the_rest_of_its_path() -> None:
    assert called(spans_of(Model(), detail="all")) == INSIDE


def test_names_dont_depend_on_when_spans_are_sent() -> None:
    model = Model()
    model.encoder.mlp.register_forward_hook(
        lambda *_: OtelRecordFunctionInstrumentor().flush() and None
    )
    assert called(spans_of(model, detail="all")) == INSIDE


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_sums_are_called_by_the_rest_of_their_paths() -> None:
    spans = spans_of(nn.Sequential(*[Stack() for _ in range(40)]), span_budget=10)
    names = {span.name: (span.attributes or {}).get("recfn.module") for span in spans}
    assert names["layers.* (folded)"] == "*.layers.*"
    assert names["attention (folded)"] == "*.layers.*.attention"


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_calls_again_keeps_its_path(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.block, x, use_reentrant=reentrant)

    model = nn.Sequential(Checkpointed())
    traces = Traces(budgets={}, detail="all")
    try:
        x = torch.ones(2, 4, requires_grad=True)
        traces.serve(lambda: model(x).sum().backward())
        spans = traces.spans()
    finally:
        traces.instrumentor.uninstrument()
    calls = Counter((span.name, (span.attributes or {}).get("recfn.module")) for span in spans)
    assert calls["attention", "0.block.attention"] == 2
    assert calls["block", "0.block"] == calls["0.block", "0.block"] == 1


def test_a_path_of_numbers_alone_is_no_name() -> None:
    spans = spans_of(nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4))), detail="all")
    assert called(spans) == {
        ("Sequential", None, "Sequential"),
        ("Linear", "0", "Linear"),
        ("Sequential", "1", "Sequential"),
        ("Linear", "1.0", "Linear"),
    }


def test_a_setting_keeps_the_names_of_torch_in_spans() -> None:
    spans = spans_of(Net(), detail="all", span_names="torch")
    assert {class_in_name(span.name) for span in spans} >= {"Net", "Block", "Linear", "Dropout"}
    assert {kind for _, _, kind in called(spans)} == {"Net", "Block", "Linear", "Dropout"}


@pytest.mark.parametrize(
    ("asked", "is_one"),
    [
        ({}, True),
        ({"span_names": "torch"}, False),
        ({"span_budget": None}, False),
        ({"detail": "all"}, False),
    ],
)
def test_a_backward_node_is_one_span_as_the_page_says(asked: dict[str, Any], is_one: bool) -> None:
    weight = torch.ones(4, 4, requires_grad=True)
    traces = Traces(budgets={}, **asked)
    try:
        traces.serve(lambda: Doubled.apply(weight).sum().backward())
        spans = traces.spans()
    finally:
        traces.instrumentor.uninstrument()
    names = [span.name for span in spans]
    assert "DoubledBackward" in names
    assert ("autograd::engine::evaluate_function: DoubledBackward" in names) != is_one


def test_a_hook_sees_the_rows_as_they_were_recorded() -> None:
    seen = []
    spans = spans_of(Net(), detail="all", span_hook=lambda row, _: seen.append(row.name))
    assert {class_in_name(name) for name in seen} >= {"Net", "Block", "Linear", "Dropout"}
    assert {"layers.1", "attention"} <= {span.name for span in spans}


def test_tables_trees_and_reports_have_the_names_of_spans(tmp_path: Path) -> None:
    net = Net()
    with profile() as prof, torch.no_grad():
        net(torch.ones(2, 4))
    names = {"Net", "layers.0", "layers.1", "attention", "Dropout"}
    averages = {average.key: average.count for average in prof.key_averages()}
    assert names <= averages.keys()
    assert averages["attention"] == 2
    for by in ("name", "thread"):
        ends = {path.path[-3:] for path in prof.tree(by)}  # type: ignore[arg-type]
        assert {("Net", "layers.0", "attention"), ("Net", "layers.1", "Dropout")} <= ends
    assert ("Net", "layers.1", "attention") in {path.path for path in prof.tree("module")}
    prof.export_chrome_trace(tmp_path / "trace.json.gz")
    prof.report(tmp_path / "profile.json")
    main(["report", str(tmp_path / "trace.json.gz"), "--out", str(tmp_path / "file.json")])
    for page in ("profile.json", "file.json"):
        text = (tmp_path / page).read_text()
        assert names <= set(re.findall(r'"([\w.]+)"', text))
        assert "nn.Module" not in text


def test_a_setting_keeps_the_names_of_torch_in_profiles_and_reports(tmp_path: Path) -> None:
    net = Net()
    with profile(span_names="torch") as prof, torch.no_grad():
        net(torch.ones(2, 4))
    classes = {"Net", "Block", "Linear", "Dropout"}
    for names in (
        {average.key for average in prof.key_averages()},
        {name for path in prof.tree() for name in path.path},
    ):
        assert {class_in_name(name) for name in names} >= classes
        assert not {"Net", "layers.0", "attention"} & names
    prof.export_chrome_trace(tmp_path / "trace.json.gz")
    prof.report(tmp_path / "profile.json")
    options = ["--span-names", "torch", "--out", str(tmp_path / "file.json")]
    assert main(["report", str(tmp_path / "trace.json.gz"), *options]) == 0
    for page in ("profile.json", "file.json"):
        names = {each["name"] for each in json.loads((tmp_path / page).read_text())["by_name"]}
        assert {class_in_name(name) for name in names} >= classes
        assert not {"Net", "layers.0", "attention"} & names


@pytest.mark.parametrize("span_names", ["short", "torch"])
def test_metrics_have_the_names_of_spans(span_names: str) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    spans = spans_of(Net(), detail="all", span_names=span_names, meter_provider=provider)
    found = {
        point.attributes["recfn.name"]
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "recfn.operation.duration"
        for point in metric.data.data_points
    }
    modules = {name for name, _, _ in called(spans)}
    assert len(modules) >= 5
    assert modules <= found
    assert any(name.startswith("nn.Module: ") for name in found) is (span_names == "torch")


def test_events_and_chrome_traces_keep_the_names_of_torch(tmp_path: Path) -> None:
    with profile() as prof:
        spans_of(Net(), chrome_trace=str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    for names in ({event["name"] for event in events}, {event.name for event in prof.events()}):
        assert {class_in_name(name) for name in names} >= {"Net", "Block", "Linear", "Dropout"}
        assert "layers.0" not in names
