"""The phases of events in a Chrome trace: what an event shows, a letter each.

    X       a range                         M          the name of a thread, or another fact
    B  E    a range's begin and its end     s  f       the begin and the end of an arrow
    b  e    the same, asynchronous          t C c ...  counters, other marks, objects
    i  I    a moment

The events in the left column show times of the program, those in the right column don't.
"""

from __future__ import annotations

SLICES = frozenset("XbiIB")
"""The phases of events that make a row each."""
WITHOUT_TIMES = frozenset("MstfCcnNODRvV")
"""The phases of events that show no time of the program: names, arrows, counters, marks and
objects.
"""
