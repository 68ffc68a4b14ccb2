"""Files that grow while the program runs."""
