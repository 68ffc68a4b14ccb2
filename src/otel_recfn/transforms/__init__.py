"""Functions over sealed batches, shared by captures and sinks."""
