"""The ``diarist`` command."""

from __future__ import annotations

import signal
import sys
from io import TextIOWrapper
from types import FrameType


def main() -> None:
    """Run the command line and exit. Files and pipes get UTF-8; a terminal without it shows ``?`` for a character."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")
    signal.signal(signal.SIGTERM, _stop)
    try:
        from diarist.cli.app import app

        app()
    except KeyboardInterrupt:  # before a command has begun
        sys.exit(130)
    except OSError as error:  # help that cannot be written, such as to a full disk
        sys.exit(f"Error: {error}")


def _stop(number: int, frame: FrameType | None) -> None:
    """Do what Ctrl-C does now, so the command cleans up; also if Ctrl-C is ignored, as in the background of a shell."""
    handler = signal.getsignal(signal.SIGINT)
    (handler if callable(handler) else signal.default_int_handler)(number, frame)
