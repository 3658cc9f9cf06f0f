"""Threads as a whole: copied inside a storage, written to lines, and read from them."""
