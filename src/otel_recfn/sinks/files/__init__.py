"""Files that are complete at every instant."""
