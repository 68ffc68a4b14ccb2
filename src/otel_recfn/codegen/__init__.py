"""The generator of trace wrappers from operator schemas; programs that use the wrappers import
none of this.
"""
