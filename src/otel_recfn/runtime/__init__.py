"""RecordFunction for Python programs: callbacks, ranges that reach them, and what a thread hands on to the work it launches."""
