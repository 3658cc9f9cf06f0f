"""Work on the log that no turn waits for, or that somebody asked for by hand."""
