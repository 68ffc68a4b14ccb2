"""Keeps sealed batches and answers questions about them."""
