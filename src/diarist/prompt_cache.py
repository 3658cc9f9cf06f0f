"""How much of a prompt repeats the one before it: what a provider's cache can serve, and what broke it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from diarist.messages import Prompt

PromptArea = Literal["tools", "instructions", "notes", "messages"]

_THREADS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCache:
    """One step's prompt against the thread's prompt before it.

    Attributes:
        characters: Length of the whole prompt, tool descriptions included.
        stable_characters: Length of its beginning that repeats the prompt before, in whole blocks.
        changed: The first area in which the earlier prompt is not repeated; None where this prompt only adds to
            it, and where there was none in this process.
        why: What memory did before this step that explains it (``activation``, ``observation``, ``reflection``,
            ``overflow``), else an empty text.
        first: There was no earlier prompt to compare with.
    """

    step_number: int
    characters: int
    stable_characters: int
    changed: PromptArea | None = None
    why: str = ""
    first: bool = False

    @property
    def stable_share(self) -> float:
        """The stable part of the prompt, 0 to 1."""
        return self.stable_characters / self.characters if self.characters else 1.0


@dataclass(slots=True, kw_only=True)
class MemoryReport:
    """What memory tells about a run. ``cache``: one entry per model call, in order."""

    cache: list[StepCache] = field(default_factory=list[StepCache])


class _Block(NamedTuple):
    area: PromptArea
    digest: int
    length: int


class PromptHistory:
    """The last prompt of each thread, as hashes of its blocks; of the 512 threads that were used last."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, list[_Block]] = OrderedDict()

    def compare(
        self, thread_id: str, prompt: Prompt, tools: Sequence[object], *, notes: int, step_number: int, why: str
    ) -> StepCache:
        """Compare a prompt with the thread's last one, and remember it, but for feedback to one attempt at its end.

        Args:
            tools: Their descriptions; anything that has a stable ``repr``.
            notes: How many of the last system messages are notes.
        """
        blocks = _blocks(prompt, tools, notes)
        before = self._last.pop(thread_id, None)
        self._last[thread_id] = blocks[:-1] if _ends_with_feedback(prompt) else blocks
        if len(self._last) > _THREADS:
            self._last.popitem(last=False)
        pairs = zip(before or (), blocks, strict=False)
        same = next(
            (index for index, (old, new) in enumerate(pairs) if old != new), min(len(before or ()), len(blocks))
        )
        broken = before is not None and same < len(before)
        return StepCache(
            step_number=step_number,
            characters=sum(block.length for block in blocks),
            stable_characters=sum(block.length for block in blocks[:same]),
            changed=before[same].area if before is not None and broken else None,
            why=why if broken else "",
            first=before is None,
        )


def _blocks(prompt: Prompt, tools: Sequence[object], notes: int) -> list[_Block]:
    blocks = [_Block("tools", hash(told), len(told)) for told in map(repr, tools)]
    system = sum(message.role == "system" for message in prompt.messages)
    for index, message in enumerate(prompt.messages):
        area: PromptArea = "messages"
        if message.role == "system":
            area = "instructions" if index < system - notes else "notes"
        text = message.text
        blocks.append(_Block(area, hash((message.role, text)), len(message.role) + 1 + len(text)))
    return blocks


def _ends_with_feedback(prompt: Prompt) -> bool:
    return bool(prompt.messages) and prompt.messages[-1].role == "user" and prompt.messages[-1].message_id is None
