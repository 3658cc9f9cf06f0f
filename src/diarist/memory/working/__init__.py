"""Working memory: a small text about a user or a thread that stands in every prompt and is kept up to date."""
