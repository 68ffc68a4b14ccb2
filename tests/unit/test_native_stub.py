"""``_native.pyi`` says what the extension module has: its names, the fields of records in their
order, and the parameters of functions that are called by name.
"""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path

import pytest

from otel_recfn import _native

STUB = ast.parse((Path(_native.__file__).parent / "_native.pyi").read_text(encoding="utf-8"))
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}
RECORDS = {
    name: node for name, node in CLASSES.items() if "NamedTuple" in map(ast.unparse, node.bases)
}
FUNCTIONS = {node.name: node for node in STUB.body if isinstance(node, ast.FunctionDef)}
BY_NAME = {name: node.args for name, node in FUNCTIONS.items() if node.args.kwonlyargs}
PROFILE = {"profile_threads", "profile_this_thread", "unprofile_threads"}
OF_OTHER_VERSIONS = PROFILE if hasattr(sys, "monitoring") else {"monitoring_callbacks"}


def annotated(nodes: list[ast.stmt]) -> list[str]:
    return [
        node.target.id
        for node in nodes
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]


def public(names: dict[str, object]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def test_the_stub_has_the_modules_names() -> None:
    declared = {*CLASSES, *FUNCTIONS, *annotated(STUB.body)} - OF_OTHER_VERSIONS
    assert public(vars(_native)) == declared


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_has_the_stubs_fields(name: str) -> None:
    record = getattr(_native, name)
    assert list(record.__match_args__) == annotated(RECORDS[name].body)
    assert record.n_fields == record.n_sequence_fields == len(record.__match_args__)


def test_a_tasks_entry_has_the_stubs_attributes_and_methods() -> None:
    body = CLASSES["TaskEntry"].body
    methods = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    assert public(dict(vars(_native.TaskEntry))) == methods | set(annotated(body))


@pytest.mark.parametrize("name", BY_NAME)
def test_a_function_has_the_stubs_parameters(name: str) -> None:
    arguments = BY_NAME[name]
    parameters = inspect.signature(getattr(_native, name)).parameters.values()
    by_name = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    assert by_name == [each.arg for each in arguments.kwonlyargs]
    by_place = [each.name for each in parameters if each.kind is not each.KEYWORD_ONLY]
    assert by_place == [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
