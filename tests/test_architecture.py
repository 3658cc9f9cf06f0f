"""The structure that the design promises: layers, sizes, and an import that costs nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "diarist"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("encoding", "exceptions", "messages", "payloads", "chunks"),
    (
        "message_check",
        "message_list",
        "prompt_cache",
        "prompting",
        "tokens",
        "counting",
        "tools",
        "typed_dicts",
        "json_schema",
        "run_context",
        "tracing",
        "database",
        "in_place",
        "lanes",
        "prepared",
        "sqlite_database",
        "libsql_database",
        "postgres_database",
        "concurrency",
    ),
    ("models", "storage", "vectors"),
    ("processors",),
    ("agent", "memory"),
    ("testing",),
    ("cli",),
)
"""From the bottom to the top; a module imports only from layers below its own."""

WITHIN = {
    "messages": {"encoding", "exceptions"},
    "payloads": {"messages"},
    "chunks": {"exceptions", "messages", "payloads"},
}
"""Inside the lowest layer words build on words; inside layer 1 modules may use each other."""

LINE_BUDGET = 400
BUDGET_OF_ALL = 52_750


def modules() -> list[Path]:
    return sorted(path for path in SRC.rglob("*.py") if path.name != "__init__.py" or path.parent != SRC)


def family(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def layer_of(name: str) -> int:
    return next(number for number, names in enumerate(LAYERS) if name in names)


def imported(path: Path) -> set[str]:
    """Families of ours that a module imports, wherever in it; what only the type checker reads is left out."""
    found: set[str] = set()
    pending: list[ast.AST] = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += node.orelse
            continue
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module]
            if node.module == "diarist":
                names = [f"diarist.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("diarist.")}
        pending += ast.iter_child_nodes(node)
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SRC)))
def test_imports_point_downwards(path: Path) -> None:
    mine = family(path)
    for other in imported(path) - {mine}:
        below = layer_of(other) < layer_of(mine)
        same_words = layer_of(mine) == 0 and other in WITHIN.get(mine, set())
        one_run = layer_of(mine) == 1 == layer_of(other)
        assert below or same_words or one_run, f"{path.relative_to(SRC)} must not import diarist.{other}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SRC)))
def test_no_file_outgrows_one_idea(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= LINE_BUDGET, f"{path.relative_to(SRC)} has {lines} lines; split it by idea"


def test_the_whole_stays_readable() -> None:
    total = sum(len(path.read_text().splitlines()) for path in modules())
    assert total <= BUDGET_OF_ALL, f"the source has {total} lines; raise the budget on purpose or remove something"


def test_every_module_has_a_docstring() -> None:
    missing = [str(path.relative_to(SRC)) for path in modules() if not ast.get_docstring(ast.parse(path.read_text()))]
    assert missing == []


def test_importing_loads_nothing_heavy() -> None:
    code = (
        "import sys, diarist, diarist.agent, diarist.memory, diarist.storage, diarist.models, diarist.testing;"
        "heavy = {'pydantic_ai', 'openai', 'anthropic', 'google.genai', 'sqlalchemy', 'tiktoken', 'rich', 'typer',"
        " 'numpy'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_module_hides_an_error() -> None:
    """``except Exception: pass`` and its like lose what somebody needs to know."""
    silent: list[str] = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler) and all(isinstance(line, ast.Pass) for line in node.body):
                broad = node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")
                silent += [f"{path.relative_to(SRC)}:{node.lineno}"] if broad else []
    assert silent == []
