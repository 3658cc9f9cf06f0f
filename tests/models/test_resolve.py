from __future__ import annotations

import subprocess
import sys

import pytest

from diarist import Agent
from diarist.exceptions import ConfigError
from diarist.messages import Prompt
from diarist.models import LibraryModel, Model, ModelRequest, has_credentials, providers, resolve
from diarist.models.openai_chat import OpenAIChatModel
from diarist.models.resolve import Client
from diarist.testing import ScriptedModel
from tests.loopback.openai_server import OpenAIServer


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for info in providers.PROVIDERS.values():
        for name in (*info.keys, info.base_url):
            if name:
                monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("model_id", "provider", "name"),
    [
        ("openai/gpt-5-mini", "openai", "gpt-5-mini"),
        ("openai-responses/gpt-5", "openai-responses", "gpt-5"),
        ("anthropic/claude-sonnet-5", "anthropic", "claude-sonnet-5"),
        ("google/gemini-2.5-flash", "google", "gemini-2.5-flash"),
        ("openrouter/meta-llama/llama-4-scout", "openrouter", "meta-llama/llama-4-scout"),
        ("deepseek/deepseek-chat", "deepseek", "deepseek-chat"),
    ],
)
def test_ids(model_id: str, provider: str, name: str) -> None:
    model = resolve(model_id, api_key="k")
    assert (model.provider, model.name, model.id) == (provider, name, model_id)


@pytest.mark.parametrize(
    ("model_id", "client", "kind"),
    [
        ("openai/gpt-5-mini", "auto", OpenAIChatModel),
        ("groq/llama-4", "auto", OpenAIChatModel),
        ("ollama/qwen3", "auto", OpenAIChatModel),
        ("openai/gpt-5-mini", "library", LibraryModel),
        ("openai-responses/gpt-5", "auto", LibraryModel),
        ("anthropic/claude-sonnet-5", "auto", LibraryModel),
        ("mistral/mistral-large", "auto", LibraryModel),
    ],
)
def test_an_id_and_the_client_option_choose_the_model_class(
    model_id: str, client: Client, kind: type[Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providers, "find_spec", lambda name: object())
    assert type(resolve(model_id, api_key="k", client=client)) is kind


def test_the_lean_client_is_for_chat_completions() -> None:
    with pytest.raises(ConfigError, match="there is no lean client for 'anthropic', only for cerebras"):
        resolve("anthropic/claude-sonnet-5", api_key="k", client="lean")


def test_the_lean_client_needs_no_provider_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "find_spec", lambda name: None)
    assert resolve("groq/llama-4", api_key="k").id == "groq/llama-4"


@pytest.mark.parametrize("address", ["localhost:8000", "ftp://example.com", ""])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(ConfigError, match="http://"):
        OpenAIChatModel(provider="vllm", name="x", base_url=address or "//")


def test_a_model_stays_what_it_is() -> None:
    model = ScriptedModel("Hi")
    assert resolve(model) is model


@pytest.mark.parametrize(
    ("model_id", "remedy"),
    [
        ("gpt-5-mini", "provider/model"),
        ("openai/", "provider/model"),
        ("/gpt-5", "provider/model"),
        ("", "provider/model"),
        ("antropic/claude-sonnet-5", "did you mean 'anthropic'"),
        ("nobody/at-all", "known: alibaba, anthropic"),
        ("openai/gpt-5-mini", "set OPENAI_API_KEY"),
        ("google/gemini-2.5-flash", "set GOOGLE_API_KEY or GEMINI_API_KEY"),
        ("anthropic/claude-sonnet-5", "set ANTHROPIC_API_KEY"),
    ],
)
def test_the_message_says_what_to_do(model_id: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy):
        resolve(model_id)


@pytest.mark.parametrize(
    ("model_id", "package", "install"),
    [
        ("anthropic/claude-sonnet-5", "anthropic", r"diarist\[anthropic\]"),
        ("google/gemini-2.5-flash", "google.genai", r"diarist\[google\]"),
        ("mistral/mistral-large", "mistralai", r"pydantic-ai-slim\[mistral\]"),
    ],
)
def test_a_missing_package_is_named(model_id: str, package: str, install: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "find_spec", lambda name: None if name == package else object())
    with pytest.raises(ConfigError, match=f"pip install '{install}'"):
        resolve(model_id, api_key="k")


def test_not_a_model() -> None:
    with pytest.raises(ConfigError, match="not a model: 42"):
        resolve(42)  # type: ignore[arg-type]


def test_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_credentials("google/gemini-2.5-flash")
    monkeypatch.setenv("GEMINI_API_KEY", "k")
    assert has_credentials("google/gemini-2.5-flash")
    assert not has_credentials("openai/gpt-5")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:1/v1")
    assert has_credentials("openai/gpt-5")
    assert has_credentials("ollama/qwen3")
    assert isinstance(resolve("openai/gpt-5"), Model)
    with pytest.raises(ConfigError, match="unknown provider"):
        has_credentials("nobody/at-all")


@pytest.mark.parametrize(("model_id", "path"), [("azure/mine", ""), ("openai/mine", "/openai/v1")])
async def test_azure_by_the_address_of_a_resource(
    model_id: str, path: str, openai_server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_VERSION", "2024-10-21")
    model = resolve(model_id, base_url=f"{openai_server.url}{path}", api_key="k")
    async with Agent(model=model) as agent:
        assert (await agent.generate("Hi")).text == "ok"
    assert openai_server.requests[-1].path == f"{path or '/openai/deployments/mine'}/chat/completions"


@pytest.mark.parametrize("provider", sorted(providers.PROVIDERS))
def test_the_library_knows_every_provider(provider: str) -> None:
    from pydantic_ai.providers import infer_provider_class

    info = providers.PROVIDERS[provider]
    kind = "openai-chat" if provider == "openai" else provider
    try:
        infer_provider_class(kind)
    except ImportError as error:
        assert info.install.split("[")[-1].rstrip("]") in str(error)  # noqa: PT017 - it depends on what is installed


@pytest.mark.parametrize("provider", ["deepseek", "openrouter"])
async def test_an_argument_the_provider_does_not_take(provider: str) -> None:
    model = resolve(f"{provider}/m", api_key="k", base_url="http://localhost:1", client="library")
    with pytest.raises(ConfigError, match=f"'{provider}' does not take base_url$"):
        await anext(model.stream(ModelRequest(prompt=Prompt(messages=[]))))


def test_importing_and_resolving_load_no_provider_library() -> None:
    code = """
import sys
import diarist.models
from diarist.models import resolve
import diarist.testing
for model_id in ("openai/gpt-5-mini", "anthropic/claude-sonnet-5", "google/gemini-2.5-flash"):
    resolve(model_id, api_key="k")
heavy = {"pydantic_ai", "openai", "anthropic", "httpx2", "httpx", "aiohttp", "genai_prices", "tiktoken"}
loaded = heavy & {name.partition(".")[0] for name in sys.modules}
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("model_id", ["openai/gpt-5-mini", "openai-responses/gpt-5-mini"])
@pytest.mark.parametrize("given", [True, False], ids=["given", "environment"])
async def test_a_key_is_sent_without_the_blanks_around_it(
    model_id: str, given: bool, openai_server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not given:
        monkeypatch.setenv("OPENAI_API_KEY", " sk-secret\n")
    model = resolve(model_id, base_url=openai_server.base_url, api_key=" sk-secret\n" if given else " ")
    await Agent(model=model).generate("Hi")
    assert openai_server.requests[-1].headers["authorization"] == "Bearer sk-secret"
    await model.close()


def test_a_key_that_cannot_be_sent_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for broken in ("sk-sec\nret", "sk-sec\x7fret"):
        monkeypatch.setenv("OPENAI_API_KEY", broken)
        with pytest.raises(ConfigError, match="the key for 'openai' has a line break") as caught:
            resolve("openai/gpt-5-mini")
        assert "ret" not in str(caught.value)
    monkeypatch.setenv("OPENAI_API_KEY", " \n")
    assert not has_credentials("openai/gpt-5-mini")
    with pytest.raises(ConfigError, match="no key for 'openai'"):
        resolve("openai/gpt-5-mini")
