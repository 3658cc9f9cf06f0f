"""The page and the example about OpenAI Agents run, and print what they say."""

from __future__ import annotations

import ast
import contextlib
import doctest
import inspect
import io
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from agents import MultiProvider

from diarist import Memory
from tests.integrations.openai_agents.program import FakeModel

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/howto/use-with-openai-agents.md"
EXAMPLE = ROOT / "examples/integrations/openai_agents.py"


def check(said: str, printed: str) -> None:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.OutputChecker().check_output(said, printed, flags), printed


async def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("GOOGLE_GENERATIVE_AI_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    model = FakeModel(lambda request: "Try the artichokes.", [])
    monkeypatch.setattr(MultiProvider, "get_model", lambda self, name: model)
    names: dict[str, Any] = {"__name__": "page"}
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition("```python\n")[2].partition("```")[0].count("\n") <= 25
    printed = io.StringIO()
    for language, body in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if language == "output":
            check(body, printed.getvalue())
            continue
        printed = io.StringIO()
        code = compile(body, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        with contextlib.redirect_stdout(printed):
            if code.co_flags & inspect.CO_COROUTINE:
                await eval(code, names)
            else:
                exec(code, names)
    memory: Memory = names["memory"]
    await memory.close()


def test_the_example_prints_what_it_says(tmp_path: Path) -> None:
    said = ast.get_docstring(ast.parse(EXAMPLE.read_text(encoding="utf-8")), clean=True) or ""
    ran = subprocess.run([sys.executable, EXAMPLE], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    check(textwrap.dedent(said.partition("Prints::\n\n")[2]) + "\n", ran.stdout)
