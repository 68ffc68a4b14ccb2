"""The model of an event: scopes, kinds, flags, columns, and time.

It is open to every layer and imports none of them.
"""
