"""Observers in Python: the public names of the runtime, mirrored on PyTorch's own operators.

A callback added here sees ranges of ``record_function`` and ``RecordFunction``, and, once torch is imported, every RecordFunction of
PyTorch's, in whatever thread it runs. What it costs per operator that it observes: see ``add_global_callback``.
"""
