"""Rows to Chrome trace files."""
