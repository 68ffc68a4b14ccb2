"""Durations of ranges, and the counters of the pipeline, as metrics of a meter provider."""
