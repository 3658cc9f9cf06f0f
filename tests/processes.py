"""Python programs in processes of their own."""

from __future__ import annotations

import subprocess
import sys

HUNG = 600.0
"""Seconds after which a program is taken to hang; a busy machine needs a tenth of that."""


def run_python(script: str, *args: object) -> str:
    """What the script prints; it must not fail or warn."""
    command = [sys.executable, "-W", "error", "-c", script, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HUNG)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def run_at_once(script: str, arguments: list[list[str]]) -> list[str]:
    """What programs print that start with the same script, at the same moment, each with its own arguments.

    The script is run up to a line ``go()``, where it waits for the others.
    """
    waiting = "import sys\ndef go():\n    print('ready', flush=True); sys.stdin.read(1)\n"
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", waiting + script, *some],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for some in arguments
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("!")
            process.stdin.flush()
        outcomes = [process.communicate(timeout=HUNG) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [errors for _, errors in outcomes] == [""] * len(processes)
    return [said for said, _ in outcomes]
