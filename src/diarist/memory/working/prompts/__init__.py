"""The texts of working memory: files in this folder."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def load_prompt(name: str) -> str:
    """The text of ``<name>.txt``, without blank lines at its ends."""
    return (Path(__file__).parent / f"{name}.txt").read_text(encoding="utf-8").strip()
