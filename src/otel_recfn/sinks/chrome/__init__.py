"""Chrome trace files from rows."""
