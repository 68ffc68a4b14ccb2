"""The modules and optimizers that traced calls were made of: what parameters and gradients they had at first sight.

Looked up once for each object and capture that asks, and kept as texts and numbers: no object is kept alive. An object is told
from another one at the same address by a weak reference, which is dead where it is gone (``support/weak_identity.py``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from otel_recfn.support.weak_identity import WeakIdentityMap

MOST_OBJECTS = 10_000
"""Of a capture: a program that makes modules in every step would fill the memory."""
ALL = "*"


@dataclass(frozen=True)
class TensorFacts:
    """A tensor, without its data."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Empty where its layout has none."""
    dtype: str
    device: str
    layout: str
    tensor_id: int
    """The same for the same tensor while it lives, for a weight that two modules share; as torch.profiler's ``impl_ptr``."""
    storage_id: int
    """The same for tensors that share their memory; 0 where the layout has none."""


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
    self_id: int
    """``id`` of the object, which another one may have when it is gone."""
    class_id: int
    """``id`` of its class."""
    parameters: tuple[ParameterFacts, ...]
    left_out: tuple[str, ...] = ()
    """The names of parameters that are not among these: of a class of their own, whose attributes may be anything. ``*``: all,
    because the object has them in a way of its own."""


Named: TypeAlias = "Iterable[tuple[str, ParameterFacts | None]]"
"""Parameters by their names; None for what is left out."""


class CalledObjects:
    """What was called while a capture ran. From any thread."""

    def __init__(self) -> None:
        self._known: WeakIdentityMap[bool] = WeakIdentityMap()
        self._modules: list[CalledObject] = []
        self._optimizers: list[CalledObject] = []
        self.left_out = 0
        """Objects that were called when there were MOST_OBJECTS of their kind already."""

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

    def _see(self, seen: object, name: str, among: list[CalledObject], read: Callable[[Any], Named]) -> None:
        if self._known.get(seen):
            return
        self._known.set(seen, True)
        if len(among) >= MOST_OBJECTS:
            self.left_out += 1
            return
        kind = type(seen)
        try:
            named = list(read(seen))
            parameters = tuple([facts for _, facts in named if facts is not None])
            left_out = tuple([name for name, facts in named if facts is None])
        except Exception:  # a class of the program's own, which has no such attributes
            parameters, left_out = (), (ALL,)
        among.append(CalledObject(name, kind.__name__, id(seen), id(kind), parameters, left_out))


captures_of_calls: list[CalledObjects] = []
"""Of the captures that ask for what is called in them, while they run."""


def _parameters_of_module(module: Any) -> Named:
    for name, parameter in list(module._parameters.items()):
        if parameter is not None:
            facts = _facts(parameter)
            yield str(name), None if facts is None else ParameterFacts(str(name), facts, _facts(parameter.grad))


def _parameters_of_optimizer(optimizer: Any) -> Named:
    for number, group in enumerate(list(optimizer.param_groups)):
        for place, parameter in enumerate(list(group.get("params", ()))):
            facts, name = _facts(parameter), f"{number}.{place}"
            state = {} if facts is None else _state(optimizer.state.get(parameter, {}))
            yield name, None if facts is None else ParameterFacts(name, facts, _facts(parameter.grad), state)


def _state(kept: Mapping[Any, Any]) -> dict[str, TensorFacts]:
    named = {name: _facts(value) for name, value in list(kept.items()) if isinstance(name, str)}
    return {name: facts for name, facts in named.items() if facts is not None}


def _facts(value: Any) -> TensorFacts | None:
    """None for what is no tensor, or of a class of its own, whose attributes may be anything."""
    torch: Any = sys.modules["torch"]
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        return None
    has_storage = value.layout == torch.strided
    return TensorFacts(
        shape=tuple(value.shape),
        strides=tuple(value.stride()) if has_storage else (),
        dtype=str(value.dtype),
        device=str(value.device),
        layout=str(value.layout),
        tensor_id=_address(value),
        storage_id=_address(value.untyped_storage()) if has_storage else 0,
    )


def _address(object_of_torchs: Any) -> int:
    """Of the C++ object: reading a storage's data_ptr() would make a lazy copy of the program's a real one."""
    return int(getattr(object_of_torchs, "_cdata", 0))
