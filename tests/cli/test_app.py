"""The command line says what it can do, quickly."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

from typer.testing import CliRunner

from diarist.cli.app import app


def test_help_lists_the_commands():
    for arguments in (["--help"], []):
        shown = CliRunner().invoke(app, arguments).output
        assert "observe" in shown
        assert "Long memory for agents" in shown
        assert "..." not in shown.split("Commands:")[1], "a summary is cut"


def test_the_version_is_the_packages():
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout == f"diarist {version('diarist')}\n"


def test_the_package_runs_as_a_module():
    run = subprocess.run([sys.executable, "-m", "diarist", "--help"], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("Usage: python -m diarist [OPTIONS] COMMAND")


def test_arguments_are_named_as_in_the_docs():
    for command in ("observe", "export", "import"):
        assert "FILE" in CliRunner().invoke(app, [command, "--help"]).output.splitlines()[0]


def test_an_unknown_command_is_a_usage_error():
    assert CliRunner().invoke(app, ["remember"]).exit_code == 2


def test_help_loads_no_heavy_library():
    code = (
        "import sys\n"
        "sys.argv = ['diarist', 'observe', '--help']\n"
        "try:\n"
        "    from diarist.cli import main; main()\n"
        "except SystemExit: pass\n"
        "heavy = {'sqlite3', 'pydantic_ai', 'openai', 'tiktoken', 'rich.progress', 'asyncio'}\n"
        "sys.exit(f'loaded: {heavy & set(sys.modules)}' if heavy & set(sys.modules) else 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
