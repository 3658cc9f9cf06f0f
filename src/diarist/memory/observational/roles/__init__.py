"""Observer and Reflector: their prompts, models and answers."""
