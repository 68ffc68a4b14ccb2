"""The rules that find what makes a program slow."""
