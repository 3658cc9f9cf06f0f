"""What the actor is shown of the log."""
