"""Evaluation of memory systems on published benchmarks: ``diarist eval``.

The names here are what a system of your own needs (``--system module:object``): see ``System``.
"""

from __future__ import annotations

from diarist.evals.items import Context, History, Question, Session
from diarist.evals.systems.base import System

__all__ = ["Context", "History", "Question", "Session", "System"]
