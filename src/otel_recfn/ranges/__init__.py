"""What both twins of ``record_function`` share above begin and end: decorated functions and ``async with``.

A ``record_function`` type, in Python or in C, calls

    __enter__()                   open_range(self)                                 -> a handle (the C type: only where observed)
    __call__(func)                decorate(type(self), self.name, self.args, func) -> the decorated function
    __aenter__()                  aenter(self)                                     -> a coroutine; it gives self
    __aexit__(kind, error, tb)    aexit(self, kind, error, tb)                     -> a coroutine; it gives None

and its objects have the attributes of ``protocol.UserRange``: ``name``, ``_recorder``, and ``_entered``, which is None
at first and writable.
"""

from otel_recfn.ranges.async_range import aenter, aexit, open_range
from otel_recfn.ranges.decorators import decorate

__all__ = ["aenter", "aexit", "decorate", "open_range"]
