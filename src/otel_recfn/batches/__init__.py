"""Sealed batches to what follows from them: plans, links, folding, views, self times."""
