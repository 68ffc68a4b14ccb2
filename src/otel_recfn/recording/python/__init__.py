"""The Python twin of the native recorder."""
