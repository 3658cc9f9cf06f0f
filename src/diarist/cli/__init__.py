"""The ``diarist`` command."""

from __future__ import annotations


def main() -> None:
    """Run the command line and exit."""
    from diarist.cli.app import app

    app()
