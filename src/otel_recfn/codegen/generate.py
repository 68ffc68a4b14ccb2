"""From a schema file to the texts of the modules."""

from __future__ import annotations

from dataclasses import dataclass

from otel_recfn.codegen.facts import Facts, Wrapping, facts_of
from otel_recfn.codegen.hints import ANY, TORCH
from otel_recfn.codegen.operators import Operator
from otel_recfn.codegen.rules import rules_of
from otel_recfn.codegen.schema_file import read_entries
from otel_recfn.codegen.shards import Request, texts
from otel_recfn.codegen.torchgen_schemas import operators_of
from otel_recfn.codegen.wrapper_text import Wrapper


@dataclass(frozen=True)
class Generated:
    """What came of a request."""

    texts: dict[str, str]
    """By file name."""
    wrapped: int
    traced: int
    """How many of these are recorded in graphs."""
    left_out: list[str]
    """Operators without a wrapper, because PyTorch's tracing of them is written by hand."""


def generate(request: Request) -> Generated:
    """Read the schemas and make the modules' texts.

    Raises:
        SchemaError: an operator's schema can't be read or wrapped.
        GeneratorError: torchgen or PyYAML is missing.
        OSError: the file can't be read.
    """
    words = ANY if request.dispatch else TORCH
    found = [(each, facts_of(each, rules_of(each.name.namespace))) for each in operators_of(read_entries(request.schema))]
    wrappers = [Wrapper(operator, facts, words) for operator, facts in found if _is_wrapped(facts)]
    left_out = [_schema_name(operator) for operator, facts in found if not _is_wrapped(facts)]
    traced = sum(each.facts.wrapping is Wrapping.TRACED for each in wrappers)
    return Generated(texts(wrappers, left_out, request), len(wrappers), traced, left_out)


def _is_wrapped(facts: Facts) -> bool:
    return facts.wrapping is not Wrapping.LEFT_OUT


def _schema_name(operator: Operator) -> str:
    return str(operator.name)
