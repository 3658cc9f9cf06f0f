"""Differences between servers of the chat completions protocol."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from diarist.exceptions import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The variant of the protocol that a server speaks.

    Attributes:
        maker: Provider name on the server's reasoning; reasoning goes back only to the same provider.
        base_url: Default address, or empty.
        max_tokens: Name of the field that limits the answer's tokens.
        json_schema: Prefixes of models that support a JSON schema for the answer; ``("",)`` means all.
        strict: True if the server supports ``strict`` with schemas.
        echoes_reasoning: True if the server accepts a model's reasoning back, in its original field.
        reasoning_field: A field that the server requires, even empty, in every answer with tool calls that follows
            reasoning.
        file_urls: True if the server accepts URLs of files other than images.
        joins_users: True if user messages in a row are sent as one. Chat templates of many open models (Gemma, Mistral)
            refuse them otherwise: roles must alternate.
    """

    maker: str
    base_url: str = ""
    max_tokens: str = "max_tokens"
    json_schema: tuple[str, ...] = ()
    strict: bool = False
    echoes_reasoning: bool = True
    reasoning_field: str | None = None
    file_urls: bool = False
    joins_users: bool = True

    def takes_schema(self, model: str) -> bool:
        """Return True if the model supports a JSON schema for its answer."""
        return model.startswith(self.json_schema) if self.json_schema else False


_ALL = ("",)

OPENAI = Dialect(
    maker="openai",
    base_url="https://api.openai.com/v1",
    max_tokens="max_completion_tokens",
    json_schema=_ALL,
    strict=True,
    joins_users=False,
)

COMPATIBLE = Dialect(maker="openai-compatible", json_schema=_ALL)
"""Any other compatible server: only fields that all servers understand."""

DIALECTS: dict[str, Dialect] = {
    "openai": OPENAI,
    "cerebras": Dialect(
        maker="cerebras",
        base_url="https://api.cerebras.ai/v1",
        max_tokens="max_completion_tokens",
        json_schema=("gpt-oss",),
        echoes_reasoning=False,
    ),
    "deepseek": Dialect(maker="deepseek", base_url="https://api.deepseek.com", reasoning_field="reasoning_content"),
    "fireworks": Dialect(maker="fireworks", base_url="https://api.fireworks.ai/inference/v1", json_schema=_ALL),
    "groq": Dialect(
        maker="groq",
        base_url="https://api.groq.com/openai/v1",
        max_tokens="max_completion_tokens",
        json_schema=("openai/gpt-oss", "moonshotai/", "meta-llama/llama-4"),
        echoes_reasoning=False,
    ),
    "litellm": Dialect(maker="litellm", base_url="http://localhost:4000", json_schema=_ALL),
    "moonshotai": Dialect(
        maker="moonshotai", base_url="https://api.moonshot.ai/v1", reasoning_field="reasoning_content"
    ),
    "nebius": Dialect(maker="nebius", base_url="https://api.studio.nebius.com/v1"),
    "ollama": Dialect(maker="ollama", base_url="http://localhost:11434/v1", json_schema=_ALL),
    "openrouter": Dialect(
        maker="openrouter", base_url="https://openrouter.ai/api/v1", json_schema=_ALL, file_urls=True
    ),
    "sambanova": Dialect(maker="sambanova", base_url="https://api.sambanova.ai/v1"),
    "together": Dialect(maker="together", base_url="https://api.together.xyz/v1"),
    "vllm": Dialect(maker="vllm", base_url="http://localhost:8000/v1", json_schema=_ALL),
}
"""Dialects by provider, from the providers' documentation and pydantic-ai's profiles."""


def dialect_for(provider: str, model: str, base_url: str | None) -> Dialect:
    """Return a provider's dialect. ``openai`` with a ``base_url`` counts as a proxy to OpenAI if the model is OpenAI's,
    else as a compatible server. Raises ConfigError for an unknown provider."""
    if provider not in DIALECTS:
        close = get_close_matches(provider, DIALECTS, n=1)
        near = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(
            f"unknown provider {provider!r}{near} (known: {', '.join(sorted(DIALECTS))}). "
            "For another compatible server write provider='openai' with base_url=, or pass dialect="
        )
    if provider == "openai" and base_url is not None and not made_by_openai(model):
        return COMPATIBLE
    return DIALECTS[provider]


def made_by_openai(model: str) -> bool:
    """Return True for the name of a model that OpenAI serves."""
    return model.startswith(("gpt-", "chatgpt-", "o1", "o3", "o4")) and not model.startswith("gpt-oss")


_THINKS: tuple[tuple[str, bool, bool], ...] = (
    ("gpt-6-astra", True, False),
    ("gpt-6.1-sol", True, False),
    ("gpt-6", True, True),
    ("gpt-5.6", True, True),
    ("gpt-5.5-pro", True, False),
    ("gpt-5.5", True, True),
    ("gpt-5.3-chat", True, False),
    ("gpt-5.2-pro", True, False),
    ("gpt-5.2-chat", True, False),
    ("gpt-5.1-codex", True, False),
    ("gpt-5.1-chat", True, False),
    ("gpt-5.", False, True),
    ("gpt-5-chat", False, False),
    ("gpt-5", True, False),
    ("o1", True, False),
    ("o3", True, False),
    ("o4", True, False),
)
"""OpenAI's reasoning models by prefix (the first match counts): if they reason by default, and if the effort ``none``
turns reasoning off. From OpenAI's documentation."""


def takes_sampling(model: str, effort: str | None) -> bool:
    """Return True if OpenAI's ``model`` accepts temperature and top_p at this effort (None: the default)."""
    name = model.removeprefix("openai/")
    for prefix, by_default, can_stop in _THINKS:
        if name.startswith(prefix):
            thinks = effort != "none" if effort else by_default
            return not thinks and (can_stop or not by_default)
    return True
