"""The one session of the process: what records, and for which captures."""
