"""Observational memory for agents of Pydantic AI."""

from importlib.util import find_spec

from diarist.exceptions import ConfigError

if find_spec("pydantic_ai") is None:
    raise ConfigError("diarist.integrations.pydantic_ai needs a package: pip install diarist")

from diarist.integrations.pydantic_ai.capability import MemoryEvent, ObservationalMemory

__all__ = ["MemoryEvent", "ObservationalMemory"]
