"""Resolve ids such as ``"openai/gpt-5-mini"`` to models."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Literal

from diarist.exceptions import ConfigError
from diarist.models import providers
from diarist.models.base import Model
from diarist.models.openai_chat import DIALECTS, OpenAIChatModel
from diarist.models.openai_chat.dialects import made_by_openai
from diarist.models.pydantic_ai import LibraryModel

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from pydantic_ai.models import Model as LibModel
    from pydantic_ai.providers import Provider


Client = Literal["auto", "lean", "library"]
"""``lean`` is diarist's own client for chat completions. ``library`` is pydantic-ai's client, for every provider."""


def resolve(
    model: str | Model | LibModel,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    client: Client = "auto",
) -> Model:
    """Return a model.

    Args:
        model: An id ``provider/model``; a ``Model``, returned as it is; or a model object of pydantic-ai.
            ``openai/…`` speaks chat completions, ``openai-responses/…`` the responses API. The part after
            the first slash may hold slashes of its own.
        base_url: Address of a server. With ``openai/…`` any compatible server works, without a key if it needs
            none. Default: the provider's environment variable, if there is one.
        api_key: Default: the provider's environment variable. Blanks and line breaks at its ends are removed.
        client: ``"auto"`` uses the lean client for providers that speak plain chat completions (``openai``,
            ``openrouter``, ``groq``, ``deepseek``, ``ollama`` and the others of ``openai_chat.DIALECTS``), the
            library for others. ``"library"`` always uses the library.

    Raises:
        ConfigError: The id has no slash or an unknown provider, or its key or package is missing, or the key has a
            control character in it. Nothing is sent and no provider library is loaded.
    """
    if isinstance(model, Model):
        return model
    if not isinstance(model, str):
        # If the caller has an object of the library, the library is loaded already. Do not load it otherwise.
        library = sys.modules.get("pydantic_ai.models")
        if library is None or not isinstance(model, library.Model):
            raise ConfigError(
                f"not a model: {model!r}; give an id such as 'openai/gpt-5-mini', a Model, or a pydantic-ai model"
            )
        return LibraryModel.around(model)
    provider, name = providers.split_id(model)
    base_url = base_url or providers.server_url(provider)
    api_key = providers.key(provider, api_key)
    lean = client == "lean" or (client == "auto" and provider in DIALECTS)
    if lean and provider not in DIALECTS:
        raise ConfigError(f"there is no lean client for {provider!r}, only for {', '.join(sorted(DIALECTS))}")
    providers.check_available(provider, api_key=api_key, base_url=base_url, library=not lean)
    if lean:
        return OpenAIChatModel(provider=provider, name=name, base_url=base_url, api_key=api_key)
    return LibraryModel(provider=provider, name=name, build=partial(_build, provider, name, base_url, api_key))


def has_credentials(model_id: str) -> bool:
    """Return True if the environment has a key or server for ``model_id``, or if it needs none. Raises ConfigError for
    an unknown provider."""
    provider, _ = providers.split_id(model_id)
    return providers.has_key(provider)


_ADDRESSES = {"litellm": "api_base", "azure": "azure_endpoint"}
"""The library's names of ``base_url``, where they differ."""


def _build(provider: str, name: str, base_url: str | None, api_key: str | None) -> LibModel:
    if provider in ("openai", "openai-responses"):
        from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

        client = _openai_provider(name, base_url, api_key)
        return (OpenAIChatModel if provider == "openai" else OpenAIResponsesModel)(name, provider=client)
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models import infer_model
    from pydantic_ai.providers import infer_provider_class

    options = {"api_key": api_key, "base_url": base_url}
    if provider in _ADDRESSES:
        options[_ADDRESSES[provider]] = options.pop("base_url")
    given = {key: value for key, value in options.items() if value is not None}
    try:
        return infer_model(f"{provider}:{name}", lambda kind: infer_provider_class(kind)(**given))
    except TypeError as error:
        raise providers.not_taken(provider, given) from error
    except (UserError, ImportError) as error:
        raise ConfigError(f"cannot use {provider}/{name}: {error}") from error


def _openai_provider(name: str, base_url: str | None, api_key: str | None) -> Provider[AsyncOpenAI]:
    """Return the provider: OpenAI or a proxy to it if the model is OpenAI's, else a compatible server."""
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    if base_url is None or made_by_openai(name):
        return OpenAIProvider(base_url=base_url, api_key=api_key)
    # Fields that every compatible server understands: `max_tokens`, and no strict schemas.
    profile = OpenAIModelProfile(
        openai_chat_supports_max_completion_tokens=False,
        openai_supports_strict_tool_definition=False,
    )
    return OpenAICompatibleProvider(
        "openai-compatible",
        base_url=base_url,
        api_key=api_key,
        profile=profile,
    )
