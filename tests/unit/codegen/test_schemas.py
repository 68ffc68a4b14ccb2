"""Schema files become the frozen model, or errors that say where."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from otel_recfn.codegen.rules import Facts, namespace_rules, operator_facts
from otel_recfn.codegen.schemas import Operator, base_type, read_operators
from otel_recfn.errors import RecfnError, SchemaError

pytestmark = [pytest.mark.torch, pytest.mark.one_python]


def operators(folder: Path, text: str) -> list[Operator]:
    pytest.importorskip("torchgen")
    file = folder / "ops.yaml"
    file.write_text(text, encoding="utf-8")
    return read_operators(file)


def read_one(folder: Path, schema: str) -> Operator:
    (operator,) = operators(folder, f"- func: {schema}\n")
    return operator


def test_a_schema_in_the_model(tmp_path: Path) -> None:
    operator = read_one(
        tmp_path,
        "mylib::clip_.lo(Tensor(a!) self, int[2]? from=[0,1], *, Scalar? lambda=None) ->"
        " Tensor(a!)",
    )
    assert str(operator.name) == "mylib::clip_.lo"
    assert (operator.name.base, operator.written, operator.kind) == ("clip", ("self",), "inplace")
    assert [(each.name, each.type, each.default) for each in operator.arguments] == [
        ("self", "Tensor", None),
        ("from", "int[2]?", "[0,1]"),
        ("lambda", "Scalar?", "None"),
    ]
    assert [each.keyword_only for each in operator.arguments] == [False, False, True]


def test_the_base_of_a_type() -> None:
    assert [base_type(each) for each in ("Tensor?[2]", "int[2]?", "Scalar?", "int[2][]")] == [
        "Tensor",
        "int",
        "Scalar",
        "int",
    ]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("- func: f(Tensor self) -> Tensor\n- func: g(Tensr self) -> Tensor", 2, "Tensr"),
        (
            "- func: f(Tensor self) -> Tensor\n\n- func: f(int self) -> Tensor",
            3,
            "declared already, at .*:1: f;",
        ),
        ("- func: f(Tensor self)", 1, "Invalid function schema"),
        ("- func: f(Tensor self, *, *, int a) -> Tensor", 1, "only occur once"),
        ("- func: f_(Tensor self) -> Tensor", 1, "mutable annotation"),
        ("- func: f(Tensor self) -> Tensor\n  autgen: f.out", 1, "autgen"),
        ("- func: a::b::f(Tensor self) -> Tensor", 1, "namespace"),
        ("- fun: f(Tensor self) -> Tensor", 1, "func"),
        ("- func: f(Tensor self) -> Tensor\n  func: g(Tensor self) -> Tensor", 1, "duplicate key"),
        ("- f", 1, "func"),
        ("f: 1", 1, "list"),
        ("- func: f(Tensor self) -> Tensor\n- func: [", 3, "YAML"),
        ("- func: m::1f(Tensor self) -> Tensor", 1, "no name"),
        ('- func: m::f"g(Tensor self) -> Tensor', 1, "no name"),
        ("- func: m::f.a.b(Tensor self) -> Tensor", 1, "no name"),
    ],
)
def test_an_error_says_where(tmp_path: Path, text: str, line: int, message: str) -> None:
    with pytest.raises(SchemaError, match=message) as raised:
        operators(tmp_path, text + "\n")
    assert str(raised.value).startswith(f"{tmp_path / 'ops.yaml'}:{line}")


def test_an_error_names_the_operator(tmp_path: Path) -> None:
    with pytest.raises(SchemaError) as raised:
        operators(tmp_path, "- func: lib::add.Tensor(Tensor self, wrong other) -> Tensor\n")
    assert f"{tmp_path / 'ops.yaml'}:1: lib::add.Tensor:" in str(raised.value)


def test_a_schema_over_several_lines(tmp_path: Path) -> None:
    (operator,) = operators(
        tmp_path, "- func: >\n    f(Tensor self,\n    Tensor other) -> Tensor\n"
    )
    assert operator.schema == "f(Tensor self, Tensor other) -> Tensor"


def test_variants_that_torchgen_makes(tmp_path: Path) -> None:
    made = operators(
        tmp_path, "- func: f(Tensor self) -> Tensor\n  dispatch:\n    CPU: f\n  autogen: f.out\n"
    )
    assert [str(each.name) for each in made] == ["aten::f", "aten::f.out"]
    assert made[1].location.endswith("ops.yaml:1: f.out")


def test_rules_of_aten_are_for_aten(tmp_path: Path) -> None:
    for name, facts in {"detach": None, "conv2d": Facts()}.items():
        assert (
            operator_facts(
                read_one(tmp_path, f"{name}(Tensor self) -> Tensor"), namespace_rules("aten")
            )
            == facts
        )
        elsewhere = operator_facts(
            read_one(tmp_path, f"mylib::{name}(Tensor self) -> Tensor"), namespace_rules("mylib")
        )
        assert elsewhere is not None
        assert elsewhere.in_place is not None


@pytest.mark.parametrize(
    "schema",
    ["f(Tensor self, Storage s) -> Tensor", "f(Tensor self) -> int", "f(Tensor self) -> ()"],
)
def test_what_cannot_be_traced(tmp_path: Path, schema: str) -> None:
    operator = read_one(tmp_path, f"mylib::{schema}")
    assert operator_facts(operator, namespace_rules("mylib")) == Facts()


def test_a_factory_into_out(tmp_path: Path) -> None:
    operator = read_one(tmp_path, "mylib::ones.out(int n, *, Tensor(a!) to) -> Tensor(a!)")
    assert operator.written == ("to",)
    facts = operator_facts(operator, namespace_rules("mylib"))
    assert facts is not None
    assert facts.in_place is not None
    assert facts.out_of_place is not None
    options = [
        f'Option("out", "to", "{option}")' for option in ("dtype", "layout", "device", "pin_memory")
    ]
    assert facts.in_place.inputs == ('"n"', '"to"')
    assert facts.out_of_place.inputs == ('"n"', *options)


@pytest.mark.parametrize("missing", ["yaml", "torchgen.gen"])
def test_what_is_missing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    file = tmp_path / "ops.yaml"
    file.write_text("- func: f(Tensor self) -> Tensor\n", encoding="utf-8")
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(RecfnError, match=f"{missing}.*pip install torch pyyaml"):
        read_operators(file)
