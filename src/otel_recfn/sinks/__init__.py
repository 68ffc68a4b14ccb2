"""Where sealed batches go. Each sink is usable, and tested, from a hand-made batch alone."""
