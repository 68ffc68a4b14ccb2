"""The recorder: per-thread buffers, and the drain that pairs and seals."""
