"""Models of pydantic-ai behind diarist's interface: every provider that its library reaches."""
