"""A recording as people read it: what to look at first, in words, and a picture in one file."""
