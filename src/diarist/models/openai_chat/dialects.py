"""How servers differ that speak the same protocol."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One server's habits.

    Attributes:
        maker: Provider name on the reasoning it makes; reasoning goes back only under the same name.
        base_url: Its address; empty where there is no default.
        max_tokens: What it calls the limit of an answer.
        json_schema: Model name prefixes that take a JSON schema for the answer; ``("",)`` means all.
        strict: It takes ``strict`` with schemas, and then holds to them exactly.
        echoes_reasoning: It takes a model's reasoning back, in the field it came in.
        reasoning_field: It wants that field on every answer with tool calls, even empty, once a model has thought.
        file_urls: Files other than images may be sent by address.
    """

    maker: str
    base_url: str = ""
    max_tokens: str = "max_tokens"
    json_schema: tuple[str, ...] = ()
    strict: bool = False
    echoes_reasoning: bool = True
    reasoning_field: str | None = None
    file_urls: bool = False

    def takes_schema(self, model: str) -> bool:
        return model.startswith(self.json_schema) if self.json_schema else False


_ALL = ("",)

OPENAI = Dialect(
    maker="openai",
    base_url="https://api.openai.com/v1",
    max_tokens="max_completion_tokens",
    json_schema=_ALL,
    strict=True,
)

COMPATIBLE = Dialect(maker="openai-compatible", json_schema=_ALL)
"""Any server at an address that the caller names: only words that all of them understand."""

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
"""By provider. Addresses and habits are those that the providers document, as pydantic-ai's profiles have them."""


def dialect_for(provider: str, model: str, base_url: str | None) -> Dialect:
    """A provider's dialect. ``openai`` at an address of its own is OpenAI behind a proxy if the model is
    OpenAI's, else just any compatible server."""
    if provider == "openai" and base_url is not None and not _made_by_openai(model):
        return COMPATIBLE
    return DIALECTS[provider]


def _made_by_openai(model: str) -> bool:
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
"""Models of OpenAI that reason, by prefix, the first that fits: whether by default, and whether that can be
turned off with effort ``none``. As OpenAI documents them."""


def takes_sampling(model: str, effort: str | None) -> bool:
    """Whether OpenAI's ``model`` takes temperature and top_p at this reasoning effort (None: the default)."""
    name = model.removeprefix("openai/")
    for prefix, by_default, can_stop in _THINKS:
        if name.startswith(prefix):
            thinks = effort != "none" if effort else by_default
            return not thinks and (can_stop or not by_default)
    return True
