"""``diarist demo``: a conversation of several weeks, played through an agent with observational memory."""
