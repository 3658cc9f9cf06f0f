"""Other programs: observational memory for the loops of other libraries, and readers of their files."""
