"""How a wrapper calls its operator.

A keyword argument costs an operator of PyTorch's some hundred nanoseconds, also where it is the default. So wrappers of these
leave out their keywords where all have their defaults, which ``is`` finds out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from keyword import iskeyword

from otel_recfn.codegen.hints import TORCH, Words, default
from otel_recfn.codegen.layout import WIDTH, Group, dict_of, lines_of, tuple_of
from otel_recfn.codegen.names import parameter_name
from otel_recfn.codegen.operators import Argument, Operator

SINGLETONS = ("None", "True", "False")


class Calls:
    """The calls in one wrapper.

    Args:
        operator: what is wrapped.
        name: of its Operator object in the module.
        words: of its defaults.
    """

    def __init__(self, operator: Operator, name: str, words: Words) -> None:
        self._name = name
        self._positional = [parameter_name(each.name) for each in operator.arguments if not each.keyword_only]
        self._keywords = [each for each in operator.arguments if each.keyword_only]
        optional = [each for each in self._keywords if each.default is not None]
        self._defaults = (
            {parameter_name(each.name): default(each, operator, words) for each in optional} if words is TORCH else {}
        )
        self._required = [each for each in self._keywords if each.default is None]

    def unobserved(self, indent: str) -> list[str]:
        """What a wrapper does where nobody observes."""
        lines = lines_of(self._call(self._keywords), indent)
        condition = f"{indent}if {self._condition}:"
        if not self._defaults or len(condition) > WIDTH:
            return lines
        return [condition, *lines_of(self._call(self._required), f"{indent}    "), *lines]

    def observed(self) -> Group:
        """What it does where somebody may."""
        by_name = [f'"{each.name}": {parameter_name(each.name)}' for each in self._keywords]
        return Group(f"return {self._name}.observed(", [tuple_of(self._positional), dict_of(by_name)], ")")

    @cached_property
    def constants(self) -> dict[str, str]:
        """Constants that the defaults are compared with: expressions by name."""
        named = {_constant(value): value for value in self._defaults.values()}
        return {name: value for name, value in named.items() if name != value}

    def _call(self, keywords: Sequence[Argument]) -> Group:
        return Group(f"return {self._name}.target(", [*self._positional, *map(_passed, keywords)], ")")

    @cached_property
    def _condition(self) -> str:
        """Whether all keywords have their defaults: ``dtype is device is None and alpha is _DEFAULT_1``."""
        values = list(dict.fromkeys(map(_constant, self._defaults.values())))
        chains = [[name for name, value in self._defaults.items() if _constant(value) == wanted] for wanted in values]
        return " and ".join(" is ".join([*chain, value]) for chain, value in zip(chains, values, strict=True))


def _passed(argument: Argument) -> str:
    value = parameter_name(argument.name)
    return f'**{{"{argument.name}": {value}}}' if iskeyword(argument.name) else f"{argument.name}={value}"


def _constant(expression: str) -> str:
    """The name under which a default is compared: itself, where ``is`` may stand beside it."""
    if expression in SINGLETONS or expression.startswith("torch."):
        return expression
    return "_DEFAULT_" + re.sub(r"\W", "_", expression.replace("-", "minus ")).strip("_")
