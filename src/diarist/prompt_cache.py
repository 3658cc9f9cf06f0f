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


class _Blocks(NamedTuple):
    """A prompt, block by block. The hashes are of area, role and text."""

    areas: list[PromptArea]
    hashes: list[int]
    lengths: list[int]


class PromptHistory:
    """The last prompt of each thread, as hashes of its blocks; of the 512 threads that were used last."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, _Blocks] = OrderedDict()

    def compare(
        self, thread_id: str, prompt: Prompt, tools: Sequence[object], *, notes: int, step_number: int, why: str
    ) -> StepCache:
        """Compare a prompt with the thread's last one, and remember it, but for feedback to one attempt at its end.

        Args:
            tools: Their descriptions; anything that has a stable ``repr``.
            notes: How many of the last system messages are notes.
        """
        blocks = _blocks(prompt, tools, notes)
        known = self._last.get(thread_id)
        self._remember(thread_id, blocks, but=int(_ends_with_feedback(prompt)))
        before = [] if known is None else known.hashes
        pairs = enumerate(zip(before, blocks.hashes, strict=False))
        same = next((place for place, (old, new) in pairs if old != new), min(len(before), len(blocks.hashes)))
        changed = known.areas[same] if known is not None and same < len(before) else None
        return StepCache(
            step_number=step_number,
            characters=sum(blocks.lengths),
            stable_characters=sum(blocks.lengths[:same]),
            changed=changed,
            why=why if changed else "",
            first=known is None,
        )

    def _remember(self, thread_id: str, blocks: _Blocks, *, but: int) -> None:
        """``but``: how many blocks at the end are not to be remembered."""
        end = len(blocks.hashes) - but
        self._last[thread_id] = _Blocks(blocks.areas[:end], blocks.hashes[:end], blocks.lengths[:end])
        self._last.move_to_end(thread_id)
        if len(self._last) > _THREADS:
            self._last.popitem(last=False)


def _blocks(prompt: Prompt, tools: Sequence[object], notes: int) -> _Blocks:
    told = [repr(tool) for tool in tools]
    instructions = sum(message.role == "system" for message in prompt.messages) - notes
    areas: list[PromptArea] = ["tools"] * len(told)
    hashes, lengths = list(map(hash, told)), list(map(len, told))
    for place, message in enumerate(prompt.messages):
        role, text = message.role, message.text
        area: PromptArea = "messages"
        if role == "system":
            area = "instructions" if place < instructions else "notes"
        areas.append(area)
        hashes.append(hash((area, role, text)))
        lengths.append(len(role) + 1 + len(text))
    return _Blocks(areas, hashes, lengths)


def _ends_with_feedback(prompt: Prompt) -> bool:
    return bool(prompt.messages) and prompt.messages[-1].role == "user" and prompt.messages[-1].message_id is None
