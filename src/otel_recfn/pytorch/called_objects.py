"""The modules and optimizers that traced calls were made of: what parameters and gradients they had at first sight.

Looked up once for each object and tracing, and kept as texts and numbers: no object is kept alive. An object is told from
another one at the same address by a weak reference, which is dead where it is gone (``support/weak_identity.py``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from otel_recfn.support.weak_identity import WeakIdentityMap

MOST_OBJECTS = 10_000
"""Of a tracing: a program that makes modules in every step would fill the memory."""


@dataclass(frozen=True)
class TensorFacts:
    """A tensor, without its data."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Empty where its layout has none."""
    dtype: str
    device: str


@dataclass(frozen=True)
class ParameterFacts:
    """A parameter of a module (by its name there) or of an optimizer (by group and place in it: ``"0.3"``)."""

    name: str
    tensor: TensorFacts
    gradient: TensorFacts | None
    state: Mapping[str, TensorFacts] = field(default_factory=dict)
    """What an optimizer keeps for it."""


@dataclass(frozen=True)
class CalledObject:
    """A module or an optimizer at its first traced call."""

    name: str
    """Of a module, as its ranges are called."""
    kind: str
    """The name of its class."""
    parameters: tuple[ParameterFacts, ...]


class CalledObjects:
    """What was called in a tracing. From any thread."""

    def __init__(self) -> None:
        self._known: WeakIdentityMap[bool] = WeakIdentityMap()
        self._modules: list[CalledObject] = []
        self._optimizers: list[CalledObject] = []

    def modules(self) -> list[CalledObject]:
        """In the order in which they were first called; without the modules in them."""
        return list(self._modules)

    def optimizers(self) -> list[CalledObject]:
        """In the order of their first steps, as they were after these."""
        return list(self._optimizers)

    def see_module(self, module: object, name: str) -> None:
        """It is being called."""
        self._see(module, name, self._modules, _parameters_of_module)

    def see_optimizer(self, optimizer: object, name: str) -> None:
        """It has just made a step."""
        self._see(optimizer, name, self._optimizers, _parameters_of_optimizer)

    def _see(self, seen: object, name: str, among: list[CalledObject], read: Callable[[Any], list[ParameterFacts]]) -> None:
        if self._known.get(seen) or len(among) >= MOST_OBJECTS:
            return
        self._known.set(seen, True)
        try:
            parameters = tuple(read(seen))
        except Exception:  # a class of the program's own, which has no such attributes
            parameters = ()
        among.append(CalledObject(name, type(seen).__name__, parameters))


class LatestTracing:
    """Of the one tracer of the process."""

    def __init__(self) -> None:
        self.called = CalledObjects()
        """In the tracing that runs, or else in the last one."""

    def begin(self) -> None:
        """Another tracing begins: all objects are looked at anew."""
        self.called = CalledObjects()


latest_tracing = LatestTracing()


def _parameters_of_module(module: Any) -> list[ParameterFacts]:
    found = []
    for name, parameter in list(module._parameters.items()):
        facts = _facts(parameter)
        if isinstance(name, str) and facts is not None:
            found.append(ParameterFacts(name, facts, _facts(parameter.grad)))
    return found


def _parameters_of_optimizer(optimizer: Any) -> list[ParameterFacts]:
    found = []
    for number, group in enumerate(list(optimizer.param_groups)):
        for place, parameter in enumerate(list(group.get("params", ()))):
            facts = _facts(parameter)
            if facts is not None:
                state = _state(optimizer.state.get(parameter, {}))
                found.append(ParameterFacts(f"{number}.{place}", facts, _facts(parameter.grad), state))
    return found


def _state(kept: Mapping[Any, Any]) -> dict[str, TensorFacts]:
    named = {name: _facts(value) for name, value in list(kept.items()) if isinstance(name, str)}
    return {name: facts for name, facts in named.items() if facts is not None}


def _facts(value: Any) -> TensorFacts | None:
    """None for what is no tensor, or of a class of its own, whose attributes may be anything."""
    torch: Any = sys.modules["torch"]
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        return None
    strides = tuple(value.stride()) if value.layout == torch.strided else ()
    return TensorFacts(tuple(value.shape), strides, str(value.dtype), str(value.device))
