"""Memory systems to compare."""
