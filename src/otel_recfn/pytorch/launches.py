"""OpenTelemetry's context for what PyTorch runs elsewhere: backward passes, callbacks of futures,
remote calls.

    a backward pass begins   the recorder reads the current context ─► autograd's threads have it
                             with PyTorch's own state
    a future is given a      callback + current context ─► the thread that completes the future:
    callback                 for a collective gloo's own thread, where PyTorch's state doesn't go
    a remote call of a       caller   pickled call ─► global propagator
    Python function                   ─► pickle + MARK + headers as JSON
                             callee   unpickle ─► headers, if there are any
                                      ─► the function runs in the context that they describe
"""

from __future__ import annotations

import contextvars
import functools
import json
from collections.abc import Callable
from functools import partial
from typing import Any

from opentelemetry import context, propagate

from otel_recfn import _native
from otel_recfn.pytorch import details
from otel_recfn.sources.protocol import Source, Wanted
from otel_recfn.support.foreign import WrappedFunction
from otel_recfn.support.logs import log


class BackwardPasses:
    """A reading of the current context at the begin of each backward pass, which no operator
    precedes.

    Python begins each pass at one object of PyTorch's, the engine; from ``watch`` to ``leave`` ours
    is in its place.
    """

    def __init__(self) -> None:
        self._theirs: Any = None
        self._ours: Any = None

    def watch(self) -> None:
        """Put our engine in the place of PyTorch's. torch has been imported."""
        theirs = details.find("backward")
        kind: Any = type(theirs)
        # Not there, ours already, or a class of the program's own.
        if kind.__module__ != "torch._C":
            return
        # The method is looked up by a function in C, so stacks and profilers see no frame of ours.
        members = {"run_backward": property(_native.before_launch), "launches": theirs.run_backward}
        try:
            self._ours = type(kind.__name__, (kind,), members)()
            self._theirs = theirs
        except TypeError:  # a class that can't be derived from, or is made otherwise
            log.debug("backward passes are not watched", exc_info=True)
            return
        setattr(*details.owner_and_name("backward"), self._ours)

    def leave(self) -> None:
        """Put PyTorch's engine back, unless somebody has replaced ours."""
        if self._ours is not None and details.find("backward") is self._ours:
            setattr(*details.owner_and_name("backward"), self._theirs)


METHODS = ("then", "add_done_callback")


class FutureCallbacks:
    """The context in which a callback was given to a ``torch.futures.Future``, restored when it
    runs.
    """

    def __init__(self) -> None:
        self._active = False
        self._future: Any = None
        self._theirs: dict[str, Any] = {}
        self._ours: dict[str, Any] = {}

    def watch(self) -> None:
        """Put our methods in the place of PyTorch's. torch has been imported."""
        self._active = True
        self._future = details.find("future")
        if self._future is None:
            return
        for name in [
            name for name in METHODS if name in vars(self._future) and name not in self._ours
        ]:
            self._theirs[name] = vars(self._future)[name]
            self._ours[name] = self._with_propagation(getattr(self._future, name))
            setattr(self._future, name, self._ours[name])

    def leave(self) -> None:
        """Put PyTorch's methods back, or, where somebody wrapped ours, only pass calls on."""
        self._active = False
        for name in [
            name for name, ours in self._ours.items() if vars(self._future).get(name) is ours
        ]:
            setattr(self._future, name, self._theirs[name])
            del self._ours[name]

    def _with_propagation(self, theirs: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(theirs)
        def method(future: Any, *callback: Any) -> Any:
            if self._active:
                callback = tuple(
                    _in_context(each, context.get_current()) if callable(each) else each
                    for each in callback
                )
            return theirs(future, *callback)

        return method


def _in_context(callback: Callable[..., Any], current: context.Context) -> Callable[..., Any]:
    def called_back(future: Any) -> Any:
        token = context.attach(current)
        try:
            return callback(future)
        finally:
            context.detach(token)

    return called_back


MARK = b"\notel-recfn"
"""The separator of pickle and headers. JSON has no bare line break, so the last one is ours."""
END = b"}"
"""The end of the headers. A pickle ends with a full stop."""


class RemoteCalls(Source):
    """The contexts of Python functions that ``torch.distributed.rpc`` calls.

    A source without rows of its own.

    It wraps the pickler of these calls. Whoever unpickles stops at the pickle's end, so a peer
    without us reads such a call as any other. Operators and TorchScript functions are sent by C++
    alone, where nothing can be added.
    """

    name = "rpc"
    needs: str | None = details.PYTHON["rpc_pickler"].location[0]
    launches = None
    """The launches that ``before_launch`` gave."""

    def __init__(self) -> None:
        self._wrappers: list[WrappedFunction] = []

    def enable(self, _wanted: Wanted) -> None:
        """Carry contexts from now on."""
        pickler = details.find("rpc_pickler")
        call = details.find("rpc_call")
        if self._wrappers or pickler is None or call is None:
            return
        after = {
            "serialize": partial(self._with_headers, call),
            "deserialize": partial(_in_senders_context, call),
        }
        self._wrappers = [WrappedFunction(pickler, name, each) for name, each in after.items()]
        for wrapper in self._wrappers:
            wrapper.install()

    def disable(self) -> None:
        """Carry no contexts any more; if somebody wrapped the pickler after us, our wrappers
        only pass on.
        """
        for wrapper in self._wrappers:
            wrapper.remove()
        self._wrappers = []

    def _with_headers(
        self, call: Any, pickled: tuple[bytes, Any], sent: object
    ) -> tuple[bytes, Any]:
        """The pickled message, with headers if it is a call, as results are pickled here too."""
        if not isinstance(sent, call):
            return pickled
        _native.before_launch(self)  # for callbacks of the call's future
        headers: dict[str, str] = {}
        propagate.inject(headers)
        text, tensors = pickled
        return (text + MARK + json.dumps(headers).encode() if headers else text), tensors


def _in_senders_context(call: Any, received: Any, message: bytes, _tensors: object) -> Any:
    """The unpickled message; if that is a call with headers, its function runs in their context."""
    if not (isinstance(received, call) and message.endswith(END)):
        return received
    headers = json.loads(message[message.rindex(MARK) + len(MARK) :])
    # Its `run` leaves no frame of ours in the error of a function that fails.
    received_context = contextvars.copy_context()
    received_context.run(context.attach, propagate.extract(headers))
    return received._replace(func=partial(received_context.run, received.func))
