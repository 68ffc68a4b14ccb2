"""Where ranges come from: PyTorch's RecordFunction, modules and optimizers; and what is current in OpenTelemetry."""
