"""The observation log: what it covers, how it changes, where it is kept, what leaves it."""
