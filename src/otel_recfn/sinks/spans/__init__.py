"""Spans that are made of rows, for a tracer provider's processors."""
