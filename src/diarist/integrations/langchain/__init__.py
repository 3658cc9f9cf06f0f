"""Observational memory for LangChain's ``create_agent``."""

from diarist.exceptions import ConfigError

try:
    import langchain as _installed  # noqa: F401
except ModuleNotFoundError as error:
    raise ConfigError("diarist.integrations.langchain needs a package: pip install 'diarist[langchain]'") from error
