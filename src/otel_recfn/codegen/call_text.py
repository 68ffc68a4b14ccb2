"""How a wrapper calls its operator.

PyTorch converts each argument that is passed, also those that are the default, which costs up to some hundred nanoseconds for a
list or a keyword. So wrappers of its operators leave out what has its default, where all have that, or all keywords have it.
Operators in Python are passed all arguments: their own defaults may be others than the schema's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from keyword import iskeyword

from otel_recfn.codegen.hints import TORCH, Words, default
from otel_recfn.codegen.layout import WIDTH, Group, dict_of, lines_of, tuple_of
from otel_recfn.codegen.names import parameter_name
from otel_recfn.codegen.operators import Argument, Operator

SINGLETONS = ("None", "True", "False")
ALL_DEFAULT = "all_default"
"""The variable that a condition is kept in that has no room on a line."""


class Calls:
    """The calls in one wrapper.

    Args:
        operator: what is wrapped.
        name: of its Operator object in the module.
        words: of its defaults.
    """

    def __init__(self, operator: Operator, name: str, words: Words) -> None:
        self._name = name
        self._arguments = operator.arguments
        self._defaults: dict[str, str] = {}
        if words is TORCH:
            optional = [each for each in operator.arguments if each.default is not None]
            self._defaults = {each.name: default(each, operator, words) for each in optional}

    def unobserved(self, indent: str) -> list[str]:
        """What a wrapper does where nobody observes."""
        keywords = [each.name for each in self._arguments if each.keyword_only and each.name in self._defaults]
        lines: list[str] = []
        for left_out in dict.fromkeys((tuple(self._defaults), tuple(keywords))):
            if left_out:
                lines += [*self._condition(left_out, indent), *lines_of(self._call(left_out), f"{indent}    ")]
        return [*lines, *lines_of(self._call(()), indent)]

    def observed(self) -> Group:
        """What it does where somebody may."""
        positional = [parameter_name(each.name) for each in self._arguments if not each.keyword_only]
        by_name = [f'"{each.name}": {parameter_name(each.name)}' for each in self._arguments if each.keyword_only]
        return Group(f"return {self._name}.observed(", [tuple_of(positional), dict_of(by_name)], ")")

    @cached_property
    def constants(self) -> dict[str, str]:
        """Constants that the defaults are compared with: expressions by name."""
        named = {_constant(value): value for value in self._defaults.values()}
        return {name: value for name, value in named.items() if name != value}

    def _call(self, left_out: Sequence[str]) -> Group:
        passed = [_passed(each) for each in self._arguments if each.name not in left_out]
        return Group(f"return {self._name}.target(", passed, ")")

    def _condition(self, names: Sequence[str], indent: str) -> list[str]:
        """Whether all these have their defaults: ``if dtype is device is None and alpha is _DEFAULT_1:``"""
        wanted = list(dict.fromkeys(_constant(self._defaults[name]) for name in names))
        same = [[parameter_name(name) for name in names if _constant(self._defaults[name]) == each] for each in wanted]
        parts = [" is ".join([*some, value]) for chain, value in zip(same, wanted, strict=True) for some in _few(chain, value)]
        lines, condition = [], parts[0]
        for part in parts[1:]:
            if len(f"{indent}if {condition} and {part}:") > WIDTH - len(ALL_DEFAULT):
                lines.append(f"{indent}{ALL_DEFAULT} = {condition}")
                condition = ALL_DEFAULT
            condition = f"{condition} and {part}"
        return [*lines, f"{indent}if {condition}:"]


def _few(names: list[str], value: str) -> Iterator[list[str]]:
    """As many as a line has room for, beside the value and what else it says."""
    some: list[str] = []
    for name in names:
        if some and len(" is ".join([*some, name, value])) > WIDTH - 40:
            yield some
            some = []
        some.append(name)
    yield some


def _passed(argument: Argument) -> str:
    value = parameter_name(argument.name)
    if not argument.keyword_only:
        return value
    return f'**{{"{argument.name}": {value}}}' if iskeyword(argument.name) else f"{argument.name}={value}"


def _constant(expression: str) -> str:
    """The name under which a default is compared: itself, where ``is`` may stand beside it."""
    if expression in SINGLETONS or expression.startswith("torch."):
        return expression
    readable = "_DEFAULT_" + re.sub(r"\W+", "_", expression.replace("-", "minus ")[:30]).strip("_")
    if re.fullmatch(r"-?\d{,20}", expression):
        return readable
    # Others may read the same: 2, "2" and (2,).
    return f"{readable}_{hashlib.sha1(expression.encode(), usedforsecurity=False).hexdigest()[:6]}"
