"""Prompt texts of working memory: one file each in this folder."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def load_prompt(name: str) -> str:
    """Return the text of ``<name>.txt`` without surrounding blank lines."""
    return (Path(__file__).parent / f"{name}.txt").read_text(encoding="utf-8").strip()
