"""Loads the examples of ``examples/integrations``, so that tests run their classes too."""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib.util
import inspect
import io
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

from diarist import Memory, ObservationalMemoryConfig, ObservationConfig
from diarist.storage import Storage

FOLDER = Path(__file__).parents[2] / "examples/integrations"


def load(name: str) -> ModuleType:
    """Return an example as a module."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def check_output(name: str, folder: Path) -> None:
    """Run an example in ``folder``; it prints what its docstring says."""
    script = FOLDER / f"{name}.py"
    said = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8")), clean=True) or ""
    ran = subprocess.run([sys.executable, script], cwd=folder, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    expected = textwrap.dedent(said.partition("Prints::\n\n")[2]) + "\n"
    assert doctest.OutputChecker().check_output(expected, ran.stdout, doctest.ELLIPSIS), ran.stdout


async def run_page(page: str) -> dict[str, Any]:
    """Run the code of a page of ``docs/howto``, which prints what the page says; return its variables."""
    path = FOLDER.parents[1] / "docs/howto" / f"{page}.md"
    text = path.read_text(encoding="utf-8")
    assert text.partition("```python\n")[2].partition("```")[0].count("\n") <= 25
    names: dict[str, Any] = {"__name__": "page"}
    printed = io.StringIO()
    for language, body in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if language == "output":
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            assert doctest.OutputChecker().check_output(body, printed.getvalue(), flags), printed.getvalue()
            continue
        printed = io.StringIO()
        code = compile(body, str(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        with contextlib.redirect_stdout(printed):
            if code.co_flags & inspect.CO_COROUTINE:
                await eval(code, names)
            else:
                exec(code, names)
    return names


def memory_of(storage: Storage) -> Memory:
    """Return a memory that takes notes after a few messages."""
    observation = ObservationConfig(model="extractive", message_tokens=300)
    config = ObservationalMemoryConfig(observation=observation)
    return Memory(storage=storage, observational_memory=config, await_background=True)


def question(number: int) -> str:
    """Return the user's message of a turn. The first one has the fact that the diary must keep."""
    return "My cat is called Tiger." if number == 0 else f"On day {number} we went for a long walk in the park."


def check_pairs(calls_and_results: list[tuple[str, str]]) -> None:
    """Check the ``("call" or "result", id)`` of one request: each call is followed by its result, and nothing else."""
    open_calls: set[str] = set()
    for kind, call_id in calls_and_results:
        if kind == "call":
            open_calls.add(call_id)
        else:
            assert call_id in open_calls, f"result {call_id} has no call"
            open_calls.remove(call_id)
    assert not open_calls, f"calls without a result: {open_calls}"
