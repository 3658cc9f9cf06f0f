"""Observational memory for LangChain's ``create_agent``."""

from importlib.util import find_spec

from diarist.exceptions import ConfigError

if find_spec("langchain") is None:
    raise ConfigError("diarist.integrations.langchain needs a package: pip install 'diarist[langchain]'")

from diarist.integrations.langchain.middleware import ObservationalMemoryMiddleware

__all__ = ["ObservationalMemoryMiddleware"]
