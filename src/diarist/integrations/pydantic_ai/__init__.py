"""Observational memory for agents of Pydantic AI."""
