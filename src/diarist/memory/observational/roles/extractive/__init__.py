"""Observer and Reflector by fixed rules: offline, deterministic, without a model."""
