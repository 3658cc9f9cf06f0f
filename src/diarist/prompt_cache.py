"""Measures how much of a prompt repeats the previous prompt, and why the rest changed. Caches can serve that part."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal, NamedTuple

from diarist.byte_cache import ByteCache
from diarist.messages import Prompt, PromptMessage

PromptArea = Literal["tools", "instructions", "notes", "messages"]

_MAX_BYTES = 2_000_000
"""Limit for the prompts of all threads."""
_BLOCK_BYTES, _ENTRY_BYTES, _THREAD_BYTES = 24, 40, 600
"""Estimates for a block, a diary entry, and the rest of a thread's data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCache:
    """Compares one step's prompt with the thread's previous prompt for the same model.

    Attributes:
        characters: Length of the whole prompt, including tool descriptions.
        stable_characters: Length of the prompt's beginning that repeats the previous prompt, in whole blocks.
        changed: The first area that differs from the previous prompt; None if this prompt only adds to it, or if this
            process knows no previous prompt.
        why: How this run or another one changed the diary since the previous prompt: ``activation`` (new notes),
            ``reflection``, ``forgetting`` or ``edit``; empty if the diary did not change.
        first: True if there was no previous prompt.
    """

    step_number: int
    characters: int
    stable_characters: int
    changed: PromptArea | None = None
    why: str = ""
    first: bool = False

    @property
    def stable_share(self) -> float:
        """Return the stable part of the prompt, 0 to 1."""
        return self.stable_characters / self.characters if self.characters else 1.0


@dataclass(slots=True, kw_only=True)
class MemoryReport:
    """Memory's report on a run.

    Attributes:
        cache: One entry per model call, in order.
        warning: Of the last model call: why memory could not take notes, or waits after a failure before it takes
            notes again; empty if it could.
    """

    cache: list[StepCache] = field(default_factory=list[StepCache])
    warning: str = ""


class _Blocks(NamedTuple):
    """The blocks of a prompt: tools, instructions, notes, then messages. ``tools``, ``instructions`` and ``notes`` are
    numbers of blocks. The hashes cover area, role and text."""

    tools: int
    instructions: int
    notes: int
    hashes: array[int]
    lengths: array[int]

    def area(self, place: int) -> PromptArea:
        """Return the area of a block."""
        if place < self.tools:
            return "tools"
        if place < self.tools + self.instructions:
            return "instructions"
        return "notes" if place < self.tools + self.instructions + self.notes else "messages"


class DiaryState(NamedTuple):
    """A diary as shown in a prompt. ``entries`` are hashes of the shown entries, in order."""

    born: str
    erasures: int
    generation: int
    entries: tuple[int, ...]

    def why(self, before: DiaryState) -> str:
        """Return the kind of change from ``before`` to this state; empty if nothing changed."""
        if self.erasures != before.erasures or (before.born and self.born != before.born):
            return "forgetting"
        if self.generation != before.generation:
            return "reflection"
        if self.entries == before.entries:
            return ""
        return "activation" if self.entries[: len(before.entries)] == before.entries else "edit"


class PromptHistory:
    """The last prompt of each thread and model, as hashes of its blocks. Keeps the most recently used prompts, in at
    most 2 MB."""

    def __init__(self) -> None:
        self._last: ByteCache[tuple[str, str], tuple[_Blocks, DiaryState]] = ByteCache(_MAX_BYTES)

    def compare(
        self,
        thread_id: str,
        model_id: str,
        prompt: Prompt,
        tools: Sequence[object],
        *,
        notes: int,
        diary: DiaryState,
        step_number: int,
    ) -> StepCache:
        """Compare a prompt with the previous one, and remember it. Feedback at its end is not remembered, since it
        belongs to one attempt.

        Args:
            tools: Descriptions of the tools: objects with a stable ``repr``.
            notes: Number of notes among the last system messages.
            diary: The diary that the notes show.
        """
        blocks = _blocks(prompt, tools, notes)
        known, diary_before = self._last.get((thread_id, model_id)) or (None, diary)
        last = prompt.messages[-1] if prompt.messages else None
        is_feedback = last is not None and last.role == "user" and last.message_id is None
        end = len(blocks.hashes) - is_feedback
        kept = blocks._replace(hashes=blocks.hashes[:end], lengths=blocks.lengths[:end])
        size = _THREAD_BYTES + end * _BLOCK_BYTES + len(diary.entries) * _ENTRY_BYTES
        self._last.put((thread_id, model_id), (kept, diary), size)
        before = array("q") if known is None else known.hashes
        same = min(len(before), len(blocks.hashes))  # the number of leading blocks that are equal
        if before[:same] != blocks.hashes[:same]:
            same = next(i for i, (old, new) in enumerate(zip(before, blocks.hashes, strict=False)) if old != new)
        changed = known.area(same) if known is not None and same < len(before) else None
        return StepCache(
            step_number=step_number,
            characters=sum(blocks.lengths),
            stable_characters=sum(blocks.lengths[:same]),
            changed=changed,
            why=diary.why(diary_before) if changed else "",
            first=known is None,
        )


def _blocks(prompt: Prompt, tools: Sequence[object], notes: int) -> _Blocks:
    described = [repr(tool) for tool in tools]
    leading = list(takewhile(lambda message: message.role == "system", prompt.messages))
    instructions = len(leading) - notes
    blocks = [(hash(text), len(text)) for text in described]
    blocks += [_block(message, place < instructions) for place, message in enumerate(leading)]
    rest = prompt.messages[len(leading) :]
    blocks += [((known := message.derived) and known.block) or _block(message) for message in rest]  # mostly known
    hashes, lengths = array("q", [block[0] for block in blocks]), array("q", [block[1] for block in blocks])
    return _Blocks(len(described), instructions, notes, hashes, lengths)


def _block(message: PromptMessage, is_instruction: bool = False) -> tuple[int, int]:
    """Return the block of a message, and keep it if the message never changes."""
    derived = message.derived
    if derived is not None and derived.block is not None:
        return derived.block
    text = message.text
    block = hash((message.role, is_instruction, text)), len(message.role) + 1 + len(text)
    if derived is not None:
        derived.block = block
    return block
