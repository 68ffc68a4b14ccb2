"""The text of one operator's wrapper, and how it calls the operator.

PyTorch converts each argument that is passed, also those that are the default, which costs up to some hundred nanoseconds for a
list or a keyword. So wrappers of its operators leave out what has its default, where all have that, or all keywords have it.
Operators in Python are passed all arguments: their own defaults may be others than the schema's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from keyword import iskeyword

from otel_recfn.codegen import hints
from otel_recfn.codegen.hints import TORCH, Words
from otel_recfn.codegen.layout import STEP as INDENT
from otel_recfn.codegen.layout import WIDTH, Group, dict_of, docstring, lines_of, split_lines, tuple_of
from otel_recfn.codegen.names import function_name, is_name, is_objects, library_name, operator_name, parameter_name
from otel_recfn.codegen.operators import Argument, Operator
from otel_recfn.codegen.rules import Facts, Input, Recorded
from otel_recfn.model.errors import SchemaError

SINGLETONS = ("None", "True", "False")
ALL_DEFAULT = "all_default"
"""The variable that a condition is kept in that has no room on a line."""


@dataclass(frozen=True)
class Wrapper:
    """An operator that is wrapped."""

    operator: Operator
    facts: Facts
    words: Words

    @property
    def name(self) -> str:
        """The function's."""
        return function_name(self.operator.name)

    @property
    def constants(self) -> dict[str, str]:
        """Constants of its module that the defaults are compared with: expressions by name."""
        named = {_constant(value): value for value in self._defaults.values()}
        return {name: value for name, value in named.items() if name != value}

    @cached_property
    def _defaults(self) -> dict[str, str]:
        """The defaults, by argument, that may be left out of a call."""
        optional = [each for each in self.operator.arguments if each.default is not None] if self.words is TORCH else []
        return {each.name: hints.default(each, self.operator, self.words) for each in optional}

    @property
    def _object(self) -> str:
        """The Operator object's name in the module."""
        return operator_name(self.name)

    def lines(self) -> list[str]:
        """The Operator object and the function."""
        return [
            *lines_of(self._declaration()),
            "",
            "",
            *self._function(),
        ]

    # --- what is recorded

    def _declaration(self) -> Group:
        name = self.operator.name
        parts: list[str | Group] = [
            f'"{name.full}"',
            f'"{name.overload}"',
            self._types(),
            self._return_types(),
            *self._recorded(),
        ]
        return Group(f"{self._object} = {library_name(name.namespace)}.operator(", parts, ")")

    def _types(self) -> Group:
        return dict_of([f'"{each.name}": "{each.type.text}"' for each in self.operator.arguments])

    def _return_types(self) -> Group:
        return tuple_of([f'"{each.type.text}"' for each in self.operator.returns])

    def _recorded(self) -> Iterator[Group]:
        in_place, out_of_place, guard = self.facts.in_place, self.facts.out_of_place, self.facts.guard
        if in_place is None or out_of_place is None:
            return
        yield self._node("Recorded(", in_place)
        if out_of_place != in_place:
            yield self._node("out_of_place=Recorded(", out_of_place)
        if guard is not None:
            yield Group("guard=Guard(", [f'"{guard.operator}"', f'"{guard.argument}"'], ")")

    def _node(self, opening: str, recorded: Recorded) -> Group:
        parts: list[str | Group] = [f'"{recorded.kind}"']
        arguments = [each.name for each in self.operator.arguments]
        if [each.value for each in recorded.inputs] != arguments:
            parts.append(tuple_of([_input(each) for each in recorded.inputs], "inputs"))
        if recorded.outputs and set(recorded.outputs) <= set(arguments):
            parts.append(tuple_of([f'"{each}"' for each in recorded.outputs], "outputs"))
        return Group(opening, parts, ")")

    # --- the function

    def _function(self) -> list[str]:
        return [
            *self._signature(),
            *docstring(f"{self.operator.name.namespace}::{self.operator.schema}", INDENT),
            f"{INDENT}if not Watched.now:",
            *self._unobserved(INDENT * 2),
            *lines_of(self._observed(), INDENT),
        ]

    def _signature(self) -> list[str]:
        parts: list[str | Group] = []
        for number, each in enumerate(self.operator.arguments):
            if each.keyword_only and (number == 0 or not self.operator.arguments[number - 1].keyword_only):
                parts.append("*")
            parts.append(self._parameter(each))
        self._check_parameters()
        returns = hints.return_hints(self.operator, self.words)
        text = f"tuple[{', '.join(returns)}]" if len(returns) > 1 else "".join(returns) or "None"
        signature = Group(f"def {self.name}(", parts, f") -> {text}:")
        if len(signature.closing) <= WIDTH:
            return lines_of(signature)
        return [*split_lines(replace(signature, closing=") -> tuple[")), *(f"{INDENT}{each}," for each in returns), "]:"]

    def _parameter(self, argument: Argument) -> Group | str:
        name, hint = parameter_name(argument.name), hints.hint(argument.type, self.words)
        default = f" = {hints.default(argument, self.operator, self.words)}" if argument.default is not None else ""
        if argument.alias is None:
            return f"{name}: {hint}{default}"
        return Group(f"{name}: Annotated[", [hint, f'"{argument.alias}"'], f"]{default}")

    def _check_parameters(self) -> None:
        """Python wants what schemas don't say: names that differ, and defaults after what has none."""
        names = [parameter_name(each.name) for each in self.operator.arguments]
        twice = {each for each in names if names.count(each) > 1}
        if twice or not all(is_name(each) and not is_objects(each) for each in names):
            raise SchemaError(self.operator.location, f"arguments {names} can't be parameters of a function; rename them")
        positional = [each.default is not None for each in self.operator.arguments if not each.keyword_only]
        if positional != sorted(positional):
            raise SchemaError(self.operator.location, "an argument without a default follows one with a default; give it one")

    # --- how it calls the operator

    def _unobserved(self, indent: str) -> list[str]:
        """What a wrapper does where nobody observes."""
        keywords = [each.name for each in self.operator.arguments if each.keyword_only and each.name in self._defaults]
        lines: list[str] = []
        for left_out in dict.fromkeys((tuple(self._defaults), tuple(keywords))):
            if left_out:
                lines += [*self._condition(left_out, indent), *lines_of(self._call(left_out), f"{indent}    ")]
        return [*lines, *lines_of(self._call(()), indent)]

    def _observed(self) -> Group:
        """What it does where somebody may."""
        positional = [parameter_name(each.name) for each in self.operator.arguments if not each.keyword_only]
        by_name = [f'"{each.name}": {parameter_name(each.name)}' for each in self.operator.arguments if each.keyword_only]
        return Group(f"return {self._object}.observed(", [tuple_of(positional), dict_of(by_name)], ")")

    def _call(self, left_out: Sequence[str]) -> Group:
        passed = [_passed(each) for each in self.operator.arguments if each.name not in left_out]
        return Group(f"return {self._object}.target(", passed, ")")

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


def _input(given: Input) -> str:
    if given.value.startswith("="):
        return f'Constant("{given.name}", {given.value.removeprefix("=")})'
    argument, _, option = given.value.partition(".")
    return f'Option("{given.name}", "{argument}", "{option}")' if option else f'"{argument}"'


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
