"""What has to be there before a provider can be called: credentials, and the package that speaks to it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec

from diarist.exceptions import ConfigError


@dataclass(frozen=True, slots=True)
class ProviderInfo:
    """One provider.

    Attributes:
        keys: Environment variables, any one of which holds its key; empty where the key may be missing or
            comes from elsewhere (a local server, a cloud's own credentials).
        package: The module that must be importable.
        install: What to install when it is not.
        base_url: Environment variable for the address of a server, where the provider has one.
        default_url: Used when neither an argument nor that variable says where the server is.
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
    """``"openrouter/meta-llama/llama-4"`` as provider and model. Raises ConfigError with the remedy."""
    provider, slash, name = model_id.partition("/")
    if not slash or not provider or not name:
        raise ConfigError(
            f"model id {model_id!r}: write provider/model, such as 'openai/gpt-5-mini' or 'anthropic/claude-sonnet-5'"
        )
    if provider not in PROVIDERS:
        raise ConfigError(f"model id {model_id!r}: unknown provider {provider!r}{_hint(provider)}")
    return provider, name


def has_key(provider: str) -> bool:
    """Whether the environment says how to reach ``provider``: its key, or the address of its server."""
    info = PROVIDERS[provider]
    if any(os.environ.get(name) for name in info.keys):
        return True
    if info.base_url is not None:
        return bool(os.environ.get(info.base_url))
    return not info.keys


def key(provider: str) -> str | None:
    """The provider's key in the environment."""
    found = (os.environ.get(name) for name in PROVIDERS[provider].keys)
    return next((value for value in found if value), None)


def check(provider: str, *, api_key: str | None, base_url: str | None, library: bool = True) -> None:
    """Raise ConfigError when a call could only fail: no key, or no package to call with.

    ``library``: The call goes through the provider library.
    """
    info = PROVIDERS[provider]
    keyless = info.base_url is not None and base_url is not None
    if info.keys and not api_key and not keyless and not has_key(provider):
        names = " or ".join(info.keys)
        raise ConfigError(f"no key for {provider!r}: set {names}, or pass api_key=")
    if library and not _installed(info.package):
        raise ConfigError(f"{provider!r} needs a package: pip install '{info.install}'")


def server_url(provider: str) -> str | None:
    """Where the provider's server is, by environment or default; None leaves it to the provider."""
    info = PROVIDERS[provider]
    return (os.environ.get(info.base_url) if info.base_url else None) or info.default_url


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


def _hint(provider: str) -> str:
    close = get_close_matches(provider, PROVIDERS, n=1)
    near = f"; did you mean {close[0]!r}?" if close else ""
    return f"{near} (known: {', '.join(sorted(PROVIDERS))})"
