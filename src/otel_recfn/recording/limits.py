"""What a recorder keeps of what it is told, the same in both twins. The native one has them in C++ (``_native.LIMITS``)."""

from __future__ import annotations

from otel_recfn.support import stack_trace

MAX_NAME_BYTES = 2048
"""Of a name, a module or a device; of UTF-8, like all of these. Texts are cut at a character."""
MAX_ERROR_BYTES = 1024
MAX_REMOTE_ERROR_BYTES = 208
"""Of the error of a range that ends on another thread than its own."""
MAX_STACKTRACE_BYTES = stack_trace.MOST_BYTES
"""Of an exception's; not kept of a range that ends on another thread than its own."""
MAX_STACK_BYTES = 16_384
"""Whole lines; the innermost stand first."""
MAX_SHAPES_BYTES = 16_384
"""Of shapes, of dtypes and of concrete inputs: longer ones are left out, all of them, because cut they would not be JSON."""
MAX_WORD_BYTES = 1024
"""Of a word among inputs."""
MAX_DEPTH = 16_384
"""Open ranges per thread; a begin beyond is dropped."""
MAX_DEPTH_FOR_ASYNC = 768
"""The same for asynchronous ranges: tasks that wait leave room for the ranges of the one that runs."""
MAX_REMOTE_ENDS = 4096
"""Ends on other threads that wait for a drain; one beyond is lost, and counted."""
