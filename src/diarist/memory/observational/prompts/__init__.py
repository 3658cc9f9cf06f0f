"""The prompts of observational memory, as text files in this folder."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def load_prompt(name: str) -> str:
    """Return the text of ``<name>.txt``, stripped."""
    return (Path(__file__).parent / f"{name}.txt").read_text(encoding="utf-8").strip()
