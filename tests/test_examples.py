"""Every example runs, without a key and without a network, and prints what its docstring says."""

from __future__ import annotations

import ast
import doctest
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_example_prints_what_it_says(script: Path, tmp_path: Path) -> None:
    said = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8")), clean=True) or ""
    expected = textwrap.dedent(said.partition("Prints::\n\n")[2]) + "\n"
    clean = {name: value for name, value in os.environ.items() if not name.endswith("_KEY")}
    ran = subprocess.run([sys.executable, script], cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    assert doctest.OutputChecker().check_output(expected, ran.stdout, doctest.ELLIPSIS), ran.stdout


def test_the_readme_lists_every_example() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert [script.name for script in SCRIPTS if f"]({script.name})" not in listed] == []


def test_the_page_about_other_frameworks_shows_lines_of_the_examples() -> None:
    page = (EXAMPLES.parent / "docs/howto/use-with-other-frameworks.md").read_text(encoding="utf-8")
    found = re.findall(r"^```python\n# needs ([\w-]+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(found) == page.count("```python")
    for framework, body in found:
        example = (EXAMPLES / f"integrations/{framework.replace('-', '_')}_memory.py").read_text(encoding="utf-8")
        lines = [line.strip() for line in example.splitlines()]
        shown = [line.strip() for line in body.splitlines()]
        assert any(lines[at : at + len(shown)] == shown for at in range(len(lines))), f"not in the example: {body}"
