"""The settings of an instrumentation: keyword arguments first, then ``OTEL_RECFN_*``, then the
defaults.
"""
