"""The sources of ranges: modules, optimizers, steps, Python calls; and OpenTelemetry's current context."""
