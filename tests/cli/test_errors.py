"""What cannot work is one line with the remedy on standard error, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from diarist.cli.app import app
from tests.evals import samples

BARE = """
import sys
for name in ("asyncpg", "pymongo", "numpy", "wordllama", "anthropic", "google.genai", "boto3"):
    sys.modules[name] = None
from diarist.cli import main
main()
"""
"""Runs the command as if no extra were installed."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    Path("chat.json").write_text(json.dumps([{"role": "user", "content": "My flight is AZ 204."}]))
    return tmp_path


def bare(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BARE, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        ("export postgresql://localhost/x -", "pip install 'diarist[postgres]'"),
        ("import chat.json mongodb://localhost/x", "pip install 'diarist[mongodb]'"),
        ("migrate postgresql://localhost/x", "pip install 'diarist[postgres]'"),
        ("observe chat.json --model bedrock/x", "pip install 'pydantic-ai-slim[bedrock]'"),
        ("worker app:memory", "pip install 'diarist[postgres]'"),
        *(
            pytest.param(command, f"pip install '{extra}'", marks=pytest.mark.slow)
            for command, extra in (
                ("export mongodb://localhost/x -", "diarist[mongodb]"),
                ("import chat.json postgresql://localhost/x", "diarist[postgres]"),
                ("observe chat.json --storage postgresql://localhost/x", "diarist[postgres]"),
                ("observe chat.json --storage mongodb://localhost/x", "diarist[mongodb]"),
                ("demo --model bedrock/x", "pydantic-ai-slim[bedrock]"),
            )
        ),
    ],
)
def test_a_missing_extra_is_named(folder: Path, command: str, remedy: str) -> None:
    Path("app.py").write_text("from diarist.storage.postgres import PostgresStorage")
    result = bare(*command.split())
    (line,) = (line for line in result.stderr.splitlines() if not line.startswith("Note: "))
    assert line.startswith("Error: ")
    assert remedy in line
    assert (result.returncode, result.stdout) == (2, "")


@pytest.mark.slow
def test_the_base_package_is_enough_for_sqlite_files(folder: Path) -> None:
    commands = ("import chat.json memory.db", "migrate memory.db", "export memory.db all.jsonl", "observe chat.json")
    for command in commands:
        result = bare(*command.split())
        assert result.returncode == 0, result.stderr
    assert "nothing to do" in bare("migrate", "memory.db").stdout


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device without space")
@pytest.mark.parametrize("command", ["observe chat.json", "export memory.db -", "--help", "--version"])
def test_a_full_disk_is_one_line(folder: Path, command: str) -> None:
    CliRunner().invoke(app, ["import", "chat.json", "memory.db"])
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "diarist", *command.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "Error: [Errno 28] No space left on device"
    assert "Traceback" not in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", ["observe chat.json", "observe chat.json --output json", "demo --turns 1"])
def test_files_and_pipes_get_utf_8(folder: Path, command: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "diarist", *command.split()],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "cp1252"},  # as on Windows before Python 3.15
        check=True,
    )
    assert ("█" if "demo" in command else "🔴") in result.stdout.decode()


@pytest.mark.parametrize(
    "command", ["observe chat.json --model", "demo --model", "eval locomo --data talks.json --out run --reader"]
)
def test_hints_name_options_that_the_command_has(folder: Path, command: str) -> None:
    samples.written(Path("talks.json"), samples.locomo())
    result = CliRunner().invoke(app, [*command.split(), "anthropic/x"])
    assert result.exit_code == 2
    assert result.stderr == (
        "Error: no key for 'anthropic': set ANTHROPIC_API_KEY, or name the variable that holds it with --api-key-env\n"
    )
    assert "--api-key-env" in CliRunner().invoke(app, [*command.partition(" --")[0].split(), "--help"]).stdout


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("app", "name the memory as MODULE:NAME"),
        ("app.py:memory", "write app:memory for the memory in app.py"),
        ("./app:memory", "is not the name of a module"),
        ("no_such_app:memory", "there is no module 'no_such_app', neither in"),
        ("app.part:memory", "there is no module 'app.part'"),
        ("app:nothing", "the module 'app' has no 'nothing'"),
        ("app:text", "app:text must be a Memory, not str"),
        ("app:memory", "memory"),
        ("needs:memory", "'needs' cannot be imported: ModuleNotFoundError: No module named 'no_such_package'"),
        ("broken:memory", "'broken' cannot be imported: ZeroDivisionError: division by zero; python -c"),
    ],
)
def test_a_worker_without_its_memory_says_what_is_wrong(
    folder: Path, monkeypatch: pytest.MonkeyPatch, place: str, says: str
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("app", "needs", "broken"):
        monkeypatch.setitem(sys.modules, name, sys)  # so that it is forgotten after the test
        del sys.modules[name]
    Path("app.py").write_text("from diarist import Memory\ntext = 'x'\nmemory = Memory()")
    Path("needs.py").write_text("import no_such_package")
    Path("broken.py").write_text("1 / 0")
    result = CliRunner().invoke(app, ["worker", place])
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert says in line
    assert result.exit_code == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("observe export.jsonl", "export.jsonl: is an export of diarist, which only 'diarist import' reads"),
        ("eval retention --data talks.json --base-url http://localhost/v1", "add --observer, for example"),
        ("observe nothing.json", "nothing.json: cannot be read: No such file"),
        ("observe chat.json --storage nowhere/memory.db", "the folder nowhere does not exist"),
        ("observe chat.json --storage mysql://localhost/x", "a database is an SQLite file, postgresql://"),
        ("observe chat.json --model gpt-5-mini", "write provider/model, such as 'openai/gpt-5-mini'"),
        ("observe chat.json --model opena/gpt-5-mini", "did you mean 'openai'?"),
        ("import nothing.json memory.db", "the file nothing.json does not exist"),
        ("import . memory.db", ". is a folder"),
        (
            "eval locomo --data talks.json --out chat.json --reader tests.evals.scripted:anything",
            "--out names a folder",
        ),
        ("import chat.json nowhere/memory.db", "the folder nowhere does not exist"),
        ("export nothing.db -", "the file nothing.db does not exist"),
        ("migrate nothing.db", "the file nothing.db does not exist"),
        ("demo --storage nowhere/memory.db", "nowhere does not exist; create it"),
        ("demo --storage chat.json", "file is not a database; move it away"),
    ],
)
def test_a_wrong_name_is_one_line(folder: Path, command: str, says: str) -> None:
    samples.written(Path("talks.json"), samples.locomo())
    CliRunner().invoke(app, ["import", "chat.json", "some.db"])
    CliRunner().invoke(app, ["export", "some.db", "export.jsonl"])
    result = CliRunner().invoke(app, command.split())
    lines = result.stderr.splitlines()
    assert says in lines[-1]
    assert all(not line.startswith(("Traceback", "  File")) for line in lines)
    assert result.exit_code in (1, 2)
