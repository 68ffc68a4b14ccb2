"""What becomes of each row of a batch, and above which span."""
