"""Chrome traces: their text, their events, and the batch that these make."""
