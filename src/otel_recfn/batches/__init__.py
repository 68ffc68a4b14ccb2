"""The work on sealed batches: plans, links, folding, views and self times."""
