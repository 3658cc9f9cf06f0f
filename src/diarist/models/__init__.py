"""Language models: one small interface, and ids such as ``"openai/gpt-5-mini"`` that resolve to it.

Provider libraries are loaded at the first call of a model.
"""

from diarist.models.base import Model, ModelRequest, ModelSettings, OutputSchema, ToolChoice
from diarist.models.fallbacks import ModelEntry
from diarist.models.providers import cost
from diarist.models.pydantic_ai import LibraryModel
from diarist.models.resolve import has_credentials, resolve

__all__ = [
    "LibraryModel",
    "Model",
    "ModelEntry",
    "ModelRequest",
    "ModelSettings",
    "OutputSchema",
    "ToolChoice",
    "cost",
    "has_credentials",
    "resolve",
]
