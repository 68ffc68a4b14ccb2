"""What is worked out from sealed batches: plans, links, folding, views, self times."""
