"""RecordFunction for Python programs: callbacks, ranges that run them, and the state that a
thread passes to other threads.
"""
