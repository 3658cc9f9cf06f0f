"""Working memory: a short text about a user or a thread that is in every prompt and is kept up to date."""
