"""The Reflector: condense entries of the log into one shorter text with a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from diarist.chunks import Usage
from diarist.exceptions import ModelError
from diarist.memory.observational.prompt.threads import names_threads
from diarist.memory.observational.prompts import load_prompt
from diarist.memory.observational.roles.base import Reflected, RoleError
from diarist.memory.observational.roles.calling import (
    MAX_OUTPUT_TOKENS,
    Caller,
    Question,
    Reply,
    RoleModel,
    room_after,
)
from diarist.memory.observational.roles.observer import compose_instructions
from diarist.memory.observational.roles.parsing import Notes, escape_tags, parse_notes
from diarist.models.base import ModelSettings
from diarist.storage.records import Observation
from diarist.tokens import TokenCounter, default_counter

MAX_ATTEMPTS = 4
_MAX_CUTS = 2

_DEFAULTS = ModelSettings(temperature=0.0, max_output_tokens=MAX_OUTPUT_TOKENS)
_LEVELS = 5


class ModelReflector:
    """Reflects with a language model.

    It asks for light condensing first (level 1 of 0 to 4; level 0 if the caller gives guidance) and for one level
    more after each answer that is not below the target, at most four times. Arguments as for ``ModelObserver``; the
    temperature is 0 unless ``settings`` has one.
    """

    def __init__(
        self,
        model: RoleModel,
        *,
        settings: ModelSettings | None = None,
        counter: TokenCounter | None = None,
        instruction: str | None = None,
        language: str | None = None,
    ) -> None:
        self._caller = Caller(model, (settings or ModelSettings()).over(_DEFAULTS), counter)
        self._counter = counter or default_counter()
        self._instructions = compose_instructions("reflector", instruction, language)

    async def reflect(
        self, entries: Sequence[Observation], *, target_tokens: int, guidance: str | None = None
    ) -> Reflected:
        """See ``ReflectorRole``. Return the first result below the target, else the smallest one.

        Empty answers and loops count as attempts, not as results. If a later call fails, the best result so far is
        returned with a warning. After an answer that was cut off, the next call asks for a length that fits. If that
        is cut off too, only the older half of the entries is condensed; a single entry stays as it is.
        """
        attempts = _Attempts(self._counter)
        start = 0 if guidance else 1
        for level in range(start, min(start + MAX_ATTEMPTS, _LEVELS)):
            asked = int(min(target_tokens, attempts.room))
            data = _data(entries, level, asked, attempts.smallest, guidance)
            try:
                reply = await self._caller.ask(Question(instructions=self._instructions, data=data))
            except ModelError as error:
                if attempts.best is None:
                    raise
                attempts.warnings.append(f"level {level} failed: {error}")
                break
            attempts.usage += reply.usage
            attempts.calls += reply.calls
            attempts.warnings += reply.warnings
            if attempts.judge(reply, level) < target_tokens or attempts.cuts == _MAX_CUTS:
                break
        if attempts.best is None and attempts.cuts:
            return await self._reflect_older(entries, target_tokens, guidance, attempts)
        return attempts.result()

    async def _reflect_older(
        self, entries: Sequence[Observation], target_tokens: int, guidance: str | None, spent: _Attempts
    ) -> Reflected:
        half = len(entries) // 2
        newer = "\n".join(entry.text for entry in entries[half:])
        what = f"no answer had room for all notes; {len(entries) - half} of {len(entries)} entries stay as they are"
        made = Reflected(
            text=newer,
            usage=spent.usage,
            model=spent.model,
            calls=spent.calls,
            warnings=(*spent.warnings, what),
        )
        if not half:
            return made
        older_tokens = self._counter.count("\n".join(entry.text for entry in entries[:half]))
        target = max(target_tokens - self._counter.count(newer), older_tokens // 4, 1)
        older = await self.reflect(entries[:half], target_tokens=target, guidance=guidance)
        return replace(
            made,
            text=f"{older.text}\n{newer}",
            usage=made.usage + older.usage,
            model=older.model,
            calls=made.calls + older.calls,
            warnings=made.warnings + older.warnings,
        )


class _Attempts:
    """The best of several answers, and their usage together.

    Attributes:
        smallest: Tokens of the best answer.
        room: Tokens that fit into an answer, judging by those that were cut off.
        cuts: Number of answers that were cut off.
    """

    def __init__(self, counter: TokenCounter) -> None:
        self.best: Notes | None = None
        self.smallest = self.room = inf
        self.usage = Usage()
        self.calls = 0
        self.warnings: list[str] = []
        self.cuts = 0
        self._counter = counter
        self.model = ""

    def judge(self, reply: Reply, level: int) -> float:
        """Return the tokens of the answer's notes; infinity if the answer is no result."""
        if self.best is None:
            self.model = reply.model
        if reply.looping:
            self.warnings.append(f"level {level}: the model repeated itself")
            return inf
        notes = parse_notes(reply.text, cut=reply.cut)
        if not notes.text:
            self.warnings.append(f"level {level}: the model gave no notes")
            return inf
        tokens = self._counter.count(notes.text)
        if not notes.whole and room_after(tokens) == inf:
            self.warnings.append(f"level {level}: the model's reasoning used the output limit")
            return inf
        if not notes.whole:
            self.cuts += 1
            self.room = min(self.room, room_after(tokens))
            return inf
        if tokens < self.smallest:
            self.best, self.smallest, self.model = notes, tokens, reply.model
        return tokens

    def result(self) -> Reflected:
        if self.best is None:
            raise RoleError(
                f"the Reflector {self.model} gave nothing usable in {self.calls} calls: " + "; ".join(self.warnings)
            )
        return Reflected(
            text=self.best.text,
            current_task=self.best.current_task,
            suggested_response=self.best.suggested_response,
            usage=self.usage,
            model=self.model,
            calls=self.calls,
            warnings=tuple(self.warnings),
        )


def _data(
    entries: Sequence[Observation],
    level: int,
    target_tokens: int,
    smallest: float,
    guidance: str | None,
) -> str:
    notes = escape_tags("\n".join(entry.text for entry in entries))
    parts = [
        f"<old-notes>\n{notes}\n</old-notes>",
        *([load_prompt("reflector_threads")] if names_threads(notes) else []),
        "The notes end here. Write the new diary now, in the form described.",
        load_prompt("reflector_levels").splitlines()[level],
        f"Write fewer than {target_tokens:,} tokens, about {target_tokens * 2 // 3:,} words.",
    ]
    if smallest < inf:
        parts.append(f"An earlier attempt had {smallest:,.0f} tokens, which is too long.")
    if guidance:
        parts.append(f"The user's wish for this diary: {guidance.strip()}")
    return "\n\n".join(parts)
