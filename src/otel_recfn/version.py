"""The version, in one place; the cache of compiled observers is keyed by it."""

__version__ = "0.2.0"
