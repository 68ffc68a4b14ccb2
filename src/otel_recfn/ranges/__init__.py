"""What ``record_function``, a type in C, has in Python: decorated functions and ``async with``.

It calls

    __enter__()                   open_range(self)                                 -> a handle, where it is observed
    __call__(func)                decorate(type(self), self.name, self.args, func) -> the decorated function
    __aenter__()                  aenter(self)                                     -> a coroutine; it gives self
    __aexit__(kind, error, tb)    aexit(self, kind, error, tb)                     -> a coroutine; it gives None

and its objects have the attributes of ``async_range.UserRange``: ``name``, ``args``, and ``_entered``, which is
None at first and writable.
"""
