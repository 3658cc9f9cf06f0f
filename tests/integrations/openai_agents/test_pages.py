"""The page and the example about OpenAI Agents run, and print what they say."""

from __future__ import annotations

from pathlib import Path

import pytest
from agents import MultiProvider

from tests.integrations.examples import check_output, run_page
from tests.integrations.openai_agents.program import FakeModel


async def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("GOOGLE_GENERATIVE_AI_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    model = FakeModel(lambda request: "Try the artichokes.", [])
    monkeypatch.setattr(MultiProvider, "get_model", lambda self, name: model)
    names = await run_page("use-with-openai-agents")
    await names["memory"].close()


def test_the_example_prints_what_it_says(tmp_path: Path) -> None:
    check_output("openai_agents", tmp_path)
