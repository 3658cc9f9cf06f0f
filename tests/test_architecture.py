"""The structure that the design promises: layers, and an import that costs nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "diarist"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("encoding", "exceptions", "lazy", "messages", "chunks"),
    (
        "byte_cache",
        "checks",
        "data_urls",
        "message_check",
        "message_list",
        "notebook",
        "prompt_cache",
        "prompting",
        "tokens",
        "counting",
        "tools",
        "json_schema",
        "run_context",
        "tracing",
        "databases",
        "concurrency",
        "sync",
    ),
    ("models", "storage", "vectors"),
    ("processors", "convert"),
    ("agent", "memory"),
    ("testing", "integrations"),
    ("evals",),
    ("cli",),
    ("__main__",),
)
"""From the bottom to the top; a module imports only from layers below its own."""

WITHIN = {
    "messages": {"encoding", "exceptions"},
    "chunks": {"encoding", "exceptions", "messages"},
}
"""Inside the lowest layer words build on words; inside layer 1 modules may use each other."""


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


def dotted(path: Path) -> str:
    parts = path.relative_to(SRC.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_modules_import_each_other_not_even_for_types() -> None:
    """Imports under TYPE_CHECKING count: two modules that need each other's names are one idea in two files."""
    names = {dotted(path): path for path in SRC.rglob("*.py")}
    needs: dict[str, set[str]] = {}
    for name, path in names.items():
        if path.name == "__init__.py":
            continue
        found: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    found.add(whole if whole in names else node.module)
        needs[name] = found & names.keys() - {name}
    list(TopologicalSorter(needs).static_order())  # raises CycleError with the cycle


def test_every_module_has_a_docstring() -> None:
    missing = [str(path.relative_to(SRC)) for path in modules() if not ast.get_docstring(ast.parse(path.read_text()))]
    assert missing == []


def test_importing_loads_nothing_heavy() -> None:
    code = (
        "import sys, diarist, diarist.agent, diarist.memory, diarist.storage, diarist.models, diarist.testing;"
        "heavy = {'pydantic_ai', 'openai', 'anthropic', 'google.genai', 'sqlite3', 'asyncpg', 'tiktoken', 'rich',"
        " 'typer', 'numpy'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_module_hides_an_error() -> None:
    """``except Exception: pass`` and similar code hides errors from the user."""
    silent: list[str] = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler) and all(isinstance(line, ast.Pass) for line in node.body):
                broad = node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")
                silent += [f"{path.relative_to(SRC)}:{node.lineno}"] if broad else []
    assert silent == []
