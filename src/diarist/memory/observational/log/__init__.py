"""The observation log: coverage, changes, storage and removal."""
