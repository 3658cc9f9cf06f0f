"""The compatibility rules that come with the library, in the order in which they run."""

from diarist.processors.errors.rules.base import CompatRule
from diarist.processors.errors.rules.item_ids import ORPHANED_IDS
from diarist.processors.errors.rules.provider_tools import FOREIGN_TOOLS
from diarist.processors.errors.rules.reasoning import (
    ANTHROPIC_EMPTY,
    ANTHROPIC_FOREIGN,
    CEREBRAS,
    FOREIGN_SIGNATURES,
)
from diarist.processors.errors.rules.tool_ids import TOOL_ID_FORMAT

BUILT_IN_RULES = (
    TOOL_ID_FORMAT,
    CEREBRAS,
    ANTHROPIC_FOREIGN,
    FOREIGN_TOOLS,
    ANTHROPIC_EMPTY,
    FOREIGN_SIGNATURES,
    ORPHANED_IDS,  # last: it looks for reasoning that the others may have taken
)

__all__ = ["BUILT_IN_RULES", "CompatRule"]
