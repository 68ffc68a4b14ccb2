"""The tracer of Python calls."""
