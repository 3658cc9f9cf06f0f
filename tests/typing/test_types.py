"""Type checkers infer the types that the documentation promises. ``user_code.py`` has the assertions."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = Path(__file__).with_name("user_code.py")
CONFIG = """
[tool.pyright]
include = ["user_code.py"]
extraPaths = [{src!r}]
pythonVersion = "3.11"
typeCheckingMode = "strict"

[tool.mypy]
strict = true
mypy_path = [{src!r}]
follow_imports = "silent"  # only the user's code is checked
cache_dir = {cache!r}
"""


def refused(lines: list[str], pattern: str) -> dict[int, str]:
    """The complaints of a type checker by line."""
    matches = (re.match(pattern, line.strip()) for line in lines)
    return {int(match[1]): match[0] for match in matches if match}


@pytest.mark.parametrize(
    ("command", "pattern"),
    [
        (["pyright", "--project", "."], r".*user_code\.py:(\d+):\d+ - error.*"),
        pytest.param(["mypy", "user_code.py"], r"user_code\.py:(\d+): error.*", marks=pytest.mark.slow),
    ],
    ids=["pyright", "mypy"],
)
def test_type_checkers_see_what_users_rely_on(command: list[str], pattern: str, tmp_path: Path) -> None:
    text = CODE.read_text(encoding="utf-8")
    (tmp_path / CODE.name).write_text(text, encoding="utf-8")
    config = CONFIG.format(src=str(ROOT / "src"), cache=str(tmp_path / "cache"))
    (tmp_path / "pyproject.toml").write_text(config, encoding="utf-8")
    python = ["--pythonpath", sys.executable] if command[0] == "pyright" else []
    done = subprocess.run(
        [sys.executable, "-m", *command, *python], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    found = refused(done.stdout.splitlines(), pattern)
    wanted = {number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# error")}
    assert found.keys() == wanted, done.stdout + done.stderr
