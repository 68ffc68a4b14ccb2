"""Carries OpenTelemetry's context along with calls of Python functions by ``torch.distributed.rpc``.

    caller   pickled call ─► global propagator ─► pickle + MARK + headers as JSON
    callee   unpickle ─► headers, if there are any ─► the function runs in the context that they tell of

Whoever unpickles stops at the pickle's end, so a peer without us reads such a call as any other. Operators and TorchScript
functions are sent by C++ alone, where nothing can be added.
"""

from __future__ import annotations

import contextvars
import json
from functools import partial
from typing import Any

from opentelemetry import context, propagate

from otel_recfn.pytorch import details
from otel_recfn.recording.recorder import Recorder
from otel_recfn.sources.protocol import Source, Wanted
from otel_recfn.support.wrapped_function import WrappedFunction

MARK = b"\notel-recfn"
"""Between the pickle and the headers. JSON has no bare line break, so the last mark is ours."""
END = b"}"
"""Of the headers. A pickle alone ends with a full stop."""


class RemoteCalls(Source):
    """Wraps the pickler of remote calls. A source without rows of its own.

    Args:
        recorder: reads what is current where a call is made, for what its future calls back.
    """

    name = "rpc"
    needs: str | None = details.PYTHON["rpc_pickler"].place[0]
    launches = None
    """What ``before_launch`` gives."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._wrappers: list[WrappedFunction] = []

    def enable(self, _wanted: Wanted) -> None:
        """Carry contexts from now on."""
        pickler, call = details.find("rpc_pickler"), details.find("rpc_call")
        if self._wrappers or pickler is None or call is None:
            return
        after = {"serialize": partial(self._with_headers, call), "deserialize": partial(_in_context, call)}
        self._wrappers = [WrappedFunction(pickler, name, each) for name, each in after.items()]
        for wrapper in self._wrappers:
            wrapper.install()

    def disable(self) -> None:
        """Carry none any more; where somebody wrapped the pickler after us, our wrappers only pass on."""
        for wrapper in self._wrappers:
            wrapper.remove()
        self._wrappers = []

    def _with_headers(self, call: Any, pickled: tuple[bytes, Any], sent: object) -> tuple[bytes, Any]:
        """What was pickled, with headers if it is a call, as results are pickled here too."""
        if not isinstance(sent, call):
            return pickled
        self._recorder.before_launch(self)
        headers: dict[str, str] = {}
        propagate.inject(headers)
        text, tensors = pickled
        return (text + MARK + json.dumps(headers).encode() if headers else text), tensors


def _in_context(call: Any, received: Any, message: bytes, _tensors: object) -> Any:
    """What was unpickled; if that is a call with headers, its function runs in their context."""
    if not (isinstance(received, call) and message.endswith(END)):
        return received
    headers = json.loads(message[message.rindex(MARK) + len(MARK) :])
    around = contextvars.copy_context()  # its `run` leaves no frame of ours in the error of a function that fails
    around.run(context.attach, propagate.extract(headers))
    return received._replace(func=partial(around.run, received.func))
