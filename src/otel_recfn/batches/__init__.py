"""Sealed batches to what follows from them: links, views, gaps, joined rows, self times."""
