"""The text of one operator's wrapper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from otel_recfn.codegen import hints
from otel_recfn.codegen.call_text import Calls
from otel_recfn.codegen.errors import SchemaError
from otel_recfn.codegen.facts import Facts, Input, Recorded
from otel_recfn.codegen.hints import Words
from otel_recfn.codegen.layout import STEP as INDENT
from otel_recfn.codegen.layout import WIDTH, Group, dict_of, docstring, lines_of, split_lines, tuple_of
from otel_recfn.codegen.names import function_name, is_name, is_objects, library_name, operator_name, parameter_name
from otel_recfn.codegen.operators import Argument, Operator


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
        """Constants of its module that it needs: expressions by name."""
        return Calls(self.operator, operator_name(self.name), self.words).constants

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
        return Group(f"{operator_name(self.name)} = {library_name(name.namespace)}.operator(", parts, ")")

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
        calls = Calls(self.operator, operator_name(self.name), self.words)
        return [
            *self._signature(),
            *docstring(f"{self.operator.name.namespace}::{self.operator.schema}", INDENT),
            f"{INDENT}if not Watched.now:",
            *calls.unobserved(INDENT * 2),
            *lines_of(calls.observed(), INDENT),
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


def _input(given: Input) -> str:
    if given.value.startswith("="):
        return f'Constant("{given.name}", {given.value.removeprefix("=")})'
    argument, _, option = given.value.partition(".")
    return f'Option("{given.name}", "{argument}", "{option}")' if option else f'"{argument}"'
