"""Measures how much of a prompt repeats the previous one, which a provider's cache can serve, and why it changed."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from diarist.byte_cache import ByteCache
from diarist.messages import Prompt

PromptArea = Literal["tools", "instructions", "notes", "messages"]

_MOST, _OF_A_BLOCK, _OF_AN_ENTRY, _OF_A_THREAD = 2_000_000, 24, 40, 600
"""Bytes: the limit for all threads, and estimates for a block, a diary entry, and the rest of a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCache:
    """Comparison of one step's prompt with the previous prompt of the thread for the same model.

    Attributes:
        characters: Length of the whole prompt, including tool descriptions.
        stable_characters: Length of its start that repeats the previous prompt, in whole blocks.
        changed: The first area that differs from the previous prompt; None if this prompt only adds to it, or if this
            process has no previous one.
        why: The change of the diary since the previous prompt, by this run or another: ``activation``,
            ``observation``, ``reflection``, ``overflow``, ``forgetting``, ``edit``; else empty.
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
    """Memory's report on a run. ``cache``: one entry per model call, in order."""

    cache: list[StepCache] = field(default_factory=list[StepCache])


class _Blocks(NamedTuple):
    """A prompt in blocks. The hashes cover area, role and text."""

    areas: list[PromptArea]
    hashes: array[int]
    lengths: array[int]


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
    """The last prompt of each thread and model, as hashes of its blocks. Keeps the most recently used, in at most 2
    MB."""

    def __init__(self) -> None:
        self._last: ByteCache[tuple[str, str], tuple[_Blocks, DiaryState]] = ByteCache(_MOST)

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
        why: str,
    ) -> StepCache:
        """Compare a prompt with the previous one, and remember it, except feedback at its end that belongs to one
        attempt.

        Args:
            tools: Their descriptions; anything that has a stable ``repr``.
            notes: Number of notes among the last system messages.
            diary: The diary that the notes show.
            why: The change that this run made to the diary; empty: derived from ``diary``.
        """
        blocks = _blocks(prompt, tools, notes)
        known, shown = self._last.get((thread_id, model_id)) or (None, diary)
        self._remember((thread_id, model_id), blocks, diary, but=int(_ends_with_feedback(prompt)))
        before = () if known is None else known.hashes
        pairs = enumerate(zip(before, blocks.hashes, strict=False))
        same = next((place for place, (old, new) in pairs if old != new), min(len(before), len(blocks.hashes)))
        changed = known.areas[same] if known is not None and same < len(before) else None
        return StepCache(
            step_number=step_number,
            characters=sum(blocks.lengths),
            stable_characters=sum(blocks.lengths[:same]),
            changed=changed,
            why=(why or diary.why(shown)) if changed else "",
            first=known is None,
        )

    def _remember(self, key: tuple[str, str], blocks: _Blocks, diary: DiaryState, *, but: int) -> None:
        """Remember the prompt without its last ``but`` blocks."""
        end = len(blocks.hashes) - but
        kept = _Blocks(blocks.areas[:end], blocks.hashes[:end], blocks.lengths[:end])
        self._last.put(key, (kept, diary), _OF_A_THREAD + end * _OF_A_BLOCK + len(diary.entries) * _OF_AN_ENTRY)


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
    return _Blocks(areas, array("q", hashes), array("q", lengths))


def _ends_with_feedback(prompt: Prompt) -> bool:
    return bool(prompt.messages) and prompt.messages[-1].role == "user" and prompt.messages[-1].message_id is None
