"""The legacy profiler: runs of its own per thread, their events as pushes and pops."""
