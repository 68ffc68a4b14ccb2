"""The sinks of sealed batches. Each can be used, and tested, with a hand-made batch alone."""
