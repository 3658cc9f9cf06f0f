"""The ``diarist`` command."""

from __future__ import annotations

import sys
from io import TextIOWrapper


def main() -> None:
    """Run the command line and exit. Files and pipes get UTF-8; a terminal without it shows ``?`` for a character."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")
    try:
        from diarist.cli.app import app

        app()
    except KeyboardInterrupt:  # before a command has begun
        sys.exit(130)
