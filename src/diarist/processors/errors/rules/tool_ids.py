"""Tool-call ids that Anthropic does not take."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256

from diarist.messages import Message
from diarist.processors.errors.rules.base import CompatRule

MAX_LENGTH = 40
"""Characters of an id; OpenAI's limit for ids of tool calls, so that a repaired thread can go back there."""

_REFUSED = re.compile(r"[^a-zA-Z0-9_-]")
_DIGITS = 12


def repair_tool_ids(messages: list[Message]) -> bool:
    """Give calls whose id has other characters than letters, digits, ``_`` and ``-`` an id without them.

    Equal ids stay equal and different ones stay different: the new id ends with a hash of the old one, so that
    the same call gets the same id in every run. Call and result are one part, and keep together.
    """
    parts = [part for message in messages for part in message.tool_parts]
    renamed = _new_ids(part.call_id for part in parts)
    for part in parts:
        part.call_id = renamed.get(part.call_id, part.call_id)
    return bool(renamed)


def _new_ids(ids: Iterable[str]) -> dict[str, str]:
    known = set(ids)
    bad = sorted(old for old in known if not old or _REFUSED.search(old))
    taken = known - set(bad)
    renamed: dict[str, str] = {}
    for old in bad:
        new, salt = _clean(old), 0
        while new in taken:  # only where somebody made up an id to collide
            salt += 1
            new = _clean(old, str(salt))
        taken.add(new)
        renamed[old] = new
    return renamed


def _clean(old: str, salt: str = "") -> str:
    digest = sha256(f"{salt}\0{old}".encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    kept = _REFUSED.sub("_", old)[: MAX_LENGTH - _DIGITS - 1] or "call"
    return f"{kept}_{digest}"


TOOL_ID_FORMAT = CompatRule(
    name="anthropic-tool-id-format",
    error_patterns=(
        r"tool_(use|result)\.(tool_use_)?id\W.{0,40}should match pattern",
        r"tool_use_?id\W.{0,80}a-zA-Z0-9_-",
    ),
    fix=repair_tool_ids,
)
