"""The known providers: their credentials, packages, addresses and prices."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from inspect import signature

from diarist.checks import checked
from diarist.chunks import Usage
from diarist.exceptions import ConfigError


@dataclass(frozen=True, slots=True)
class ProviderInfo:
    """One provider.

    Attributes:
        keys: Environment variables, any of which may hold the key; empty if no key is needed or it comes from
            elsewhere (a local server, a cloud's own credentials).
        package: The module that must be importable.
        install: The package to install if the module is missing.
        base_url: Environment variable for the address of the server, if there is one.
        default_url: Address of the server if it is given neither by an argument nor by that variable.
    """

    keys: tuple[str, ...] = ()
    package: str = "openai"
    install: str = "diarist"
    base_url: str | None = None
    default_url: str | None = None


_OPENAI = ProviderInfo(("OPENAI_API_KEY",), base_url="OPENAI_BASE_URL")


def _library(extra: str, package: str, *keys: str) -> ProviderInfo:
    return ProviderInfo(keys, package=package, install=f"pydantic-ai-slim[{extra}]")


PROVIDERS: dict[str, ProviderInfo] = {
    "openai": _OPENAI,
    "openai-responses": _OPENAI,
    "anthropic": ProviderInfo(("ANTHROPIC_API_KEY",), "anthropic", "diarist[anthropic]"),
    "google": ProviderInfo(("GOOGLE_API_KEY", "GEMINI_API_KEY"), "google.genai", "diarist[google]"),
    "google-cloud": ProviderInfo((), "google.genai", "diarist[google]"),
    "bedrock": _library("bedrock", "boto3"),
    "cohere": _library("cohere", "cohere", "CO_API_KEY"),
    "groq": _library("groq", "groq", "GROQ_API_KEY"),
    "huggingface": _library("huggingface", "huggingface_hub", "HF_TOKEN"),
    "mistral": _library("mistral", "mistralai", "MISTRAL_API_KEY"),
    "xai": _library("xai", "xai_sdk", "XAI_API_KEY"),
    "ollama": ProviderInfo(base_url="OLLAMA_BASE_URL", default_url="http://localhost:11434/v1"),
    "vllm": ProviderInfo(base_url="VLLM_BASE_URL", default_url="http://localhost:8000/v1"),
    "litellm": ProviderInfo(),
    "alibaba": ProviderInfo(("ALIBABA_API_KEY", "DASHSCOPE_API_KEY")),
    "azure": ProviderInfo(("AZURE_OPENAI_API_KEY",)),
    "cerebras": ProviderInfo(("CEREBRAS_API_KEY",)),
    "crusoe": ProviderInfo(("CRUSOE_API_KEY",)),
    "deepseek": ProviderInfo(("DEEPSEEK_API_KEY",)),
    "fireworks": ProviderInfo(("FIREWORKS_API_KEY",)),
    "heroku": ProviderInfo(("HEROKU_INFERENCE_KEY",)),
    "meta": ProviderInfo(("META_API_KEY",)),
    "moonshotai": ProviderInfo(("MOONSHOTAI_API_KEY",)),
    "nebius": ProviderInfo(("NEBIUS_API_KEY",)),
    "openrouter": ProviderInfo(("OPENROUTER_API_KEY",)),
    "ovhcloud": ProviderInfo(("OVHCLOUD_API_KEY",)),
    "sambanova": ProviderInfo(("SAMBANOVA_API_KEY",)),
    "together": ProviderInfo(("TOGETHER_API_KEY",)),
    "vercel": ProviderInfo(("VERCEL_AI_GATEWAY_API_KEY", "VERCEL_OIDC_TOKEN")),
    "zai": ProviderInfo(("ZAI_API_KEY",)),
}
"""The providers that an id may name. Variables and packages are those of pydantic-ai's provider classes."""


def split_id(model_id: str) -> tuple[str, str]:
    """Return provider and model of an id such as ``"openrouter/meta-llama/llama-4"``. Raises ConfigError."""
    provider, slash, name = model_id.partition("/")
    if not slash or not provider or not name:
        raise ConfigError(
            f"model id {model_id!r}: write provider/model, such as 'openai/gpt-5-mini' or 'anthropic/claude-sonnet-5'"
        )
    if provider not in PROVIDERS:
        close = get_close_matches(provider, PROVIDERS, n=1)
        near = f"; did you mean {close[0]!r}?" if close else ""
        known = ", ".join(sorted(PROVIDERS))
        raise ConfigError(f"model id {model_id!r}: unknown provider {provider!r}{near} (known: {known})")
    return provider, name


def has_key(provider: str) -> bool:
    """Return True if no key is needed, or the environment has the provider's key or the address of its server."""
    info = PROVIDERS[provider]
    has_server = info.base_url is not None and bool(os.environ.get(info.base_url))
    return not info.keys or key_name(provider) is not None or has_server


def key_name(provider: str) -> str | None:
    """Return the name of the environment variable that holds the provider's key, or None."""
    return next((name for name in PROVIDERS[provider].keys if os.environ.get(name, "").strip()), None)


def key(provider: str, given: str | None) -> str | None:
    """Return the given key, else the provider's from the environment, or None. Raises ConfigError as ``clean_key``."""
    name = key_name(provider)
    return clean_key(provider, given) or clean_key(provider, os.environ[name] if name else None)


def clean_key(provider: str, api_key: str | None) -> str | None:
    """Return a key without blanks and line breaks at its ends; None if nothing is left.

    Raises ConfigError, which does not show the key, for a key that has a line break or control character inside.
    """
    cleaned = (api_key or "").strip()
    if not cleaned.isprintable():
        raise ConfigError(f"the key for {provider!r} has a line break or another control character in it")
    return cleaned or None


def check_available(
    provider: str,
    *,
    api_key: str | None,
    base_url: str | None,
    library: bool = True,
    resolver: str = "diarist.models.resolve",
) -> None:
    """Raise ConfigError if the key or the package for a call is missing.

    Args:
        library: True if the call goes through the provider library.
        resolver: The function that takes ``api_key``, for the error.
    """
    info = PROVIDERS[provider]
    keyless = info.base_url is not None and base_url is not None
    if info.keys and not api_key and not keyless:
        names = " or ".join(info.keys)
        raise ConfigError(f"no key for {provider!r}: set {names}, or pass api_key= to {resolver}")
    try:
        installed = not library or find_spec(info.package) is not None
    except ModuleNotFoundError:  # a parent package is missing
        installed = False
    if not installed:
        raise ConfigError(f"{provider!r} needs a package: pip install '{info.install}'")


def not_taken(provider: str, options: Iterable[str]) -> ConfigError:
    """Return the error that names those options that the library's provider does not take."""
    from pydantic_ai.providers import infer_provider_class

    taken = signature(infer_provider_class(provider)).parameters
    refused = [name for name in options if name not in taken] or options
    return ConfigError(f"{provider!r} does not take {' and '.join(refused)}")


def server_url(provider: str) -> str | None:
    """Return the address of the provider's server, from the environment or by default, or None."""
    info = PROVIDERS[provider]
    return (os.environ.get(info.base_url) if info.base_url else None) or info.default_url


_PRICE_LISTS = {
    "openai-responses": "openai",
    "bedrock": "aws",
    "google-cloud": "google",
    "xai": "x-ai",
}
"""Names of providers in the price list, if they differ from diarist's."""


def cost(model_id: str, usage: Usage) -> float | None:
    """Return the cost of a call of ``model_id`` (``"openai/gpt-5-mini"``) in US dollars; None if no price is known.

    The list prices come from the installed ``genai-prices`` package, offline. Plain, cached and cache-write tokens have
    their own prices; discounts are not included. Some prices rise with the length of a prompt. For several calls,
    add up their costs, not their usage. Raises InputError for anything but a text as the id.
    """
    from genai_prices import Usage as PricedUsage
    from genai_prices import calc_price

    provider, _, name = checked(model_id, "model_id").partition("/")
    priced = PricedUsage(
        input_tokens=usage.input_tokens,
        cache_read_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        output_tokens=usage.output_tokens,
    )
    try:
        return float(calc_price(priced, name, provider_id=_PRICE_LISTS.get(provider, provider)).total_price)
    except LookupError:
        return None
