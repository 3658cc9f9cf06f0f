"""The parts of the prompt that memory adds: the log, and a note in the user's message."""
