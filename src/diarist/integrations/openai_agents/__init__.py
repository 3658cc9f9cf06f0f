"""Observational memory for agents of OpenAI's Agents SDK."""

from diarist.exceptions import ConfigError

try:
    import agents as _installed  # noqa: F401
except ModuleNotFoundError as error:
    raise ConfigError(
        "diarist.integrations.openai_agents needs a package: pip install 'diarist[openai-agents]'"
    ) from error
