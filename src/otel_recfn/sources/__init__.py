"""The sources of ranges: modules, steps, Python calls; and OpenTelemetry's current context."""
