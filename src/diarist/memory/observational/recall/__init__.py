"""The ``recall`` tool."""

from diarist.memory.observational.recall.access import Search
from diarist.memory.observational.recall.tool import recall_tool, with_recall

__all__ = ["Search", "recall_tool", "with_recall"]
