"""Which forward range each backward range belongs to, across batches."""
