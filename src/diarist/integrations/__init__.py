"""Observational memory for the loops of other libraries: one module for each."""
