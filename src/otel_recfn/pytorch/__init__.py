"""The Python code that knows PyTorch."""
