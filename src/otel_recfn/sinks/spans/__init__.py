"""Rows to finished spans."""
