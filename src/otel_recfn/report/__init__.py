"""A recording as people look at it: what to look at first, in words, and a picture in one file. It needs no torch, no SDK."""
