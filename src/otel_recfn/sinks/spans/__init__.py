"""Spans from rows."""
