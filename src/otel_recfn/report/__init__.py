"""The report of a recording: findings in words, and a page in one file.

It needs neither torch nor the SDK.
"""
