"""Which ranges rows lie in that have not come yet."""
