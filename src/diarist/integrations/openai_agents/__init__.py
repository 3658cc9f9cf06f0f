"""Observational memory for agents of OpenAI's Agents SDK."""

from importlib.util import find_spec

from diarist.exceptions import ConfigError

if find_spec("agents") is None:
    raise ConfigError("diarist.integrations.openai_agents needs a package: pip install 'diarist[openai-agents]'")

from diarist.integrations.openai_agents.memory import ObservationalMemory

__all__ = ["ObservationalMemory"]
