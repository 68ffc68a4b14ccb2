"""The modules and optimizers that are called: their names, their paths, and their parameters at
first sight.

No object is kept alive. Weak references tell objects from later ones at the same address
(``support/foreign.py``).
"""

from __future__ import annotations

import heapq
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from types import CodeType, FrameType
from typing import Any

from otel_recfn.model.events import SOURCES, EventSource
from otel_recfn.pytorch import details
from otel_recfn.sources.calls import FrameText
from otel_recfn.support.foreign import WeakIdentityMap
from otel_recfn.support.forks import ForkSafeLock

PREFIX = SOURCES[EventSource.MODULE].call_prefix


class InstanceNames:
    """The numbers of instances, counted per class in the order of their first calls.

    The number of an instance that is gone is given to the next one: a program that makes
    ``nn.Softmax()`` anew in every forward has one name for it, and not one per step.
    """

    def __init__(self, prefix: str | None = PREFIX) -> None:
        self._prefix = prefix
        self._gone: deque[tuple[str, int, str]] = deque()
        self._names: WeakIdentityMap[tuple[str, int, str]] = WeakIdentityMap(
            on_death=self._gone.append
        )
        self._next: dict[str, count[int]] = {}
        self._free: dict[str, list[int]] = {}
        self._lock = ForkSafeLock()

    def name(self, module: object) -> str:
        """The name of this instance, the same as long as it lives."""
        known = self._names.get(module)
        if known is not None:
            return known[2]
        with self._lock:
            known = self._names.get(module)
            if known is None:
                kind = type(module).__name__
                number = self._number(kind)
                known = (kind, number, f"{self._prefix}{kind}_{number}")
                self._names.set(module, known)
            return known[2]

    def _number(self, kind: str) -> int:
        while self._gone:
            gone, number, _ = self._gone.popleft()
            heapq.heappush(self._free.setdefault(gone, []), number)
        free = self._free.get(kind)
        return heapq.heappop(free) if free else next(self._next.setdefault(kind, count()))


class ModulePaths:
    """The qualified names within an outermost module, as its ``named_modules()`` gives them."""

    def __init__(self) -> None:
        self._trees: WeakIdentityMap[_Tree] = WeakIdentityMap()
        self._outermost: WeakIdentityMap[weakref.ref[Any]] = WeakIdentityMap()
        """The module in which each one was found last."""

    def outermost(self, module: object) -> Any:
        """The outermost module that has called this one; None if it isn't known."""
        found = self._outermost.get(module)
        return found() if found is not None else None

    def path(self, outermost: Any, module: object) -> str:
        """``"encoder.layers.0"``; empty for the outermost itself and if it isn't known."""
        if module is outermost:
            return ""
        tree = self._trees.get(outermost)
        if tree is None:
            tree = _Tree(self._outermost)
            self._trees.set(outermost, tree)
        return tree.path(outermost, module)


class _Tree:
    """The paths of one outermost module, read again when a module isn't found in them.

    A module that is never found, because forward makes it on the fly, must not cost a walk through
    the whole tree each time: the walk is repeated at the 1st, 2nd, 4th, 8th... miss in a row.

    Args:
        outermost: gets the outermost module of each module of the tree.
    """

    __slots__ = ("_misses", "_outermost", "_paths")

    def __init__(self, outermost: WeakIdentityMap[weakref.ref[Any]]) -> None:
        self._outermost = outermost
        self._paths: WeakIdentityMap[str] = WeakIdentityMap()
        self._misses = 0

    def path(self, outermost: Any, module: object) -> str:
        path = self._paths.get(module)
        if path is None:
            self._misses += 1
            if self._misses & (self._misses - 1) == 0:
                self._paths = _read(outermost)
                itself = weakref.ref(outermost)
                for each in self._paths.living_keys():
                    self._outermost.set(each, itself)
                path = self._paths.get(module)
                self._misses = 0 if path is not None else self._misses
        return path or ""


COMPILED = "_orig_mod"
"""The part of a path that ``torch.compile`` adds: what is compiled has the path that it has
without.
"""


def _read(outermost: Any) -> WeakIdentityMap[str]:
    paths: WeakIdentityMap[str] = WeakIdentityMap()
    # Unhashable modules, a named_modules() of the user's own, a tree that changes meanwhile.
    with suppress(Exception):
        for path, module in outermost.named_modules():
            paths.set(module, ".".join([each for each in path.split(".") if each != COMPILED]))
    return paths


# --- parameters at first sight

MAX_OBJECTS = 10_000
"""The objects that a capture keeps: a program that makes modules in every step would fill the
memory.
"""


@dataclass(frozen=True)
class TensorFacts:
    """The facts of a tensor, without its data."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """The strides; empty if the layout has none."""
    dtype: str
    device: str
    layout: str
    tensor_id: int
    """A number of the tensor while it lives, the same for a weight that two modules share; as
    torch.profiler's ``impl_ptr``.
    """
    storage_id: int
    """A number of the memory, the same for tensors that share it; 0 if the layout has none."""


@dataclass(frozen=True)
class ParameterFacts:
    """A parameter of a module (by its name there) or of an optimizer (by group and place in it:
    ``"0.3"``).
    """

    name: str
    tensor: TensorFacts
    gradient: TensorFacts | None
    state: Mapping[str, TensorFacts] = field(default_factory=dict)
    """The values that an optimizer keeps for it."""


@dataclass(frozen=True)
class CalledObject:
    """A module or an optimizer at its first traced call."""

    name: str
    """The name of a module's ranges."""
    kind: str
    """The name of its class."""
    self_id: int
    """The ``id`` of the object, which another one may have when it is gone."""
    class_id: int
    """The ``id`` of its class."""
    parameters: tuple[ParameterFacts, ...]
    """Those that are plain tensors: a class of the program's own may make of attributes what it
    wants.
    """


class CalledObjects:
    """The objects that were called while a capture ran. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._known: WeakIdentityMap[bool] = WeakIdentityMap()
        self._modules: list[CalledObject] = []
        self._optimizers: list[CalledObject] = []
        self.left_out = 0
        """The number of objects that were called after MAX_OBJECTS of their kind."""

    def modules(self) -> list[CalledObject]:
        """The modules in the order of their first calls, each without those in it."""
        return list(self._modules)

    def optimizers(self) -> list[CalledObject]:
        """The optimizers in the order of their first steps, as they were after these."""
        return list(self._optimizers)

    def see_module(self, module: object, name: str) -> None:
        """Note a module that is being called."""
        self._see(module, name, self._modules, _module_parameters)

    def see_optimizer(self, optimizer: object, name: str) -> None:
        """Note an optimizer that has just made a step."""
        self._see(optimizer, name, self._optimizers, _optimizer_parameters)

    def _see(
        self,
        seen: object,
        name: str,
        among: list[CalledObject],
        read: Callable[[Any], Iterable[ParameterFacts]],
    ) -> None:
        if self._known.get(seen):
            return
        self._known.set(seen, True)
        if len(among) >= MAX_OBJECTS:
            self.left_out += 1
            return
        kind = type(seen)
        try:
            parameters = tuple(read(seen))
        except Exception:  # a class of the program's own, which has no such attributes
            parameters = ()
        among.append(CalledObject(name, kind.__name__, id(seen), id(kind), parameters))


call_captures: list[CalledObjects] = []
"""The objects of each running capture that asks for them."""


def _module_parameters(module: Any) -> Iterator[ParameterFacts]:
    for name, parameter in list(module._parameters.items()):
        if (facts := _facts(parameter)) is not None:
            yield ParameterFacts(str(name), facts, _facts(parameter.grad))


def _optimizer_parameters(optimizer: Any) -> Iterator[ParameterFacts]:
    for number, group in enumerate(list(optimizer.param_groups)):
        for index, parameter in enumerate(list(group.get("params", ()))):
            if (facts := _facts(parameter)) is not None:
                state = _state(optimizer.state.get(parameter, {}))
                yield ParameterFacts(f"{number}.{index}", facts, _facts(parameter.grad), state)


def _state(saved: Mapping[Any, Any]) -> dict[str, TensorFacts]:
    named = {name: _facts(value) for name, value in list(saved.items()) if isinstance(name, str)}
    return {name: facts for name, facts in named.items() if facts is not None}


def _facts(value: Any) -> TensorFacts | None:
    """The facts of a tensor; None for other objects, and for a class of its own, whose
    attributes may be anything.
    """
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


def _address(torch_object: Any) -> int:
    """The address of the C++ object.

    A storage's data_ptr() would turn a lazy copy of the program's into a real one.
    """
    return int(getattr(torch_object, "_cdata", 0))


# --- traced calls

CALL_FILES = ("torch/nn/modules/module.py", "torch/optim/optimizer.py")
"""The files of PyTorch in which that code is."""


class ModuleCalls:
    """A FrameNamer for calls of modules.

    Where hooks announce modules, it hides their calls, as a module has one range.
    """

    def __init__(self, names: InstanceNames, hooks_report: Callable[[], bool]) -> None:
        self._names, self._hooks_report = names, hooks_report
        self._optimizers = InstanceNames("Optimizer: ")

    def __call__(self, code: CodeType, usual: str) -> FrameText | None:
        """The namer of calls that run this code."""
        if code is _find_code("module_call"):
            return self._module
        return partial(self._step, usual) if code is _find_code("step_code") else None

    def _module(self, frame: FrameType) -> str | None:
        module = _first_argument(frame)
        if module is None:
            return None
        name = self._names.name(module)
        for called in call_captures:
            called.see_module(module, name)
        return None if self._hooks_report() else name

    def _step(self, usual: str, frame: FrameType) -> str:
        optimizer = _first_argument(frame)
        if optimizer is not None:
            name = self._optimizers.name(optimizer)
            for called in call_captures:
                called.see_optimizer(optimizer, name)
        return usual


def _first_argument(frame: FrameType) -> Any:
    return frame.f_locals.get(frame.f_code.co_varnames[0])


def _find_code(detail: str) -> CodeType | None:
    """The code that runs when a module is called, or after an optimizer's step; None before
    torch is imported.
    """
    if details.PYTHON[detail].location[0] not in sys.modules:
        return None
    code: CodeType | None = getattr(details.find(detail), "__code__", None)
    return code
