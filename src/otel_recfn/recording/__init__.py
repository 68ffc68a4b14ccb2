"""The recorder: a buffer per thread, and the drain that pairs and seals."""
