"""All that knows PyTorch, on the Python side."""
