"""The page and the example about LangChain run, and print what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.examples import check_output, run_page
from tests.integrations.langchain.kit import FakeChat


async def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("GOOGLE_GENERATIVE_AI_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    model = FakeChat(script=lambda request: "18 °C, and try the artichokes.")
    monkeypatch.setattr("langchain.agents.factory.init_chat_model", lambda name: model)
    names = await run_page("use-with-langchain")
    await names["memory"].close()


def test_the_example_prints_what_it_says(tmp_path: Path) -> None:
    check_output("langchain_agent", tmp_path)
