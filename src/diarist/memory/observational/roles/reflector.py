"""The Reflector: condense entries of the log into one shorter text with a model."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from diarist.exceptions import ModelError, RoleError
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.prompt.threads import names_threads
from diarist.memory.observational.prompts import load_prompt
from diarist.memory.observational.roles.base import Reflected
from diarist.memory.observational.roles.calling import (
    MAX_OUTPUT_TOKENS,
    Caller,
    RoleModel,
    RolePrompt,
    Spent,
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


class ModelReflector:
    """Reflects with a language model.

    It asks for light condensing first (level 1 of 0 to 4; level 0 if the caller gives guidance). After each answer that
    is not below the target it asks for one level more, in at most four calls. Arguments as for ``ModelObserver``, with
    the options in ``config.reflection``.
    """

    def __init__(
        self,
        model: RoleModel,
        config: ObservationalMemoryConfig | None = None,
        *,
        counter: TokenCounter | None = None,
    ) -> None:
        config = config or ObservationalMemoryConfig()
        self._caller = Caller(model, config.reflection.model_settings.over(_DEFAULTS), counter)
        self._counter = counter or default_counter()
        self._instructions = compose_instructions("reflector", config.reflection.instruction, config.language)

    async def reflect(
        self, entries: Sequence[Observation], *, target_tokens: int, guidance: str | None = None
    ) -> Reflected:
        """See ``ReflectorRole``. Return the first result below the target, else the smallest one.

        Empty answers and loops count as attempts, not as results. If a later call fails, the best result so far is
        returned with a warning. After an answer that was cut off, the next call asks for a length that fits. If that
        is cut off too, only the older half of the entries is condensed; a single entry stays as it is.
        """
        return await self._reflect(entries, target_tokens, guidance, Spent())

    async def _reflect(
        self, entries: Sequence[Observation], target_tokens: int, guidance: str | None, spent: Spent
    ) -> Reflected:
        best, smallest, model = Notes(text=""), inf, ""
        room, cuts = inf, 0  # tokens that fit into an answer, and number of cut answers, from which this is learned
        start = 0 if guidance else 1
        for level in range(start, start + MAX_ATTEMPTS):
            data = _data(entries, level, int(min(target_tokens, room)), smallest, guidance)
            try:
                reply = await self._caller.ask(RolePrompt(instructions=self._instructions, data=data), spent)
            except ModelError as error:
                if not best.text:
                    raise
                spent.warnings.append(f"level {level} failed: {error}")
                break
            notes = parse_notes(reply.text, cut=reply.cut)
            tokens = self._counter.count(notes.text)
            model = model or reply.model
            if reply.looping:
                spent.warnings.append(f"level {level}: the model repeated itself")
            elif not notes.text:
                spent.warnings.append(f"level {level}: the model gave no notes")
            elif not notes.whole and room_after(tokens) == inf:
                spent.warnings.append(f"level {level}: the model's reasoning used the output limit")
            elif not notes.whole:
                room, cuts = min(room, room_after(tokens)), cuts + 1
            elif tokens < smallest:
                best, smallest, model = notes, tokens, reply.model
            if smallest < target_tokens or cuts == _MAX_CUTS:
                break
        if not best.text and not cuts:
            what = "; ".join(spent.warnings)
            raise RoleError(f"the Reflector {model} gave nothing usable in {spent.calls} calls: {what}")
        text, half = best.text, len(entries) // 2
        if not text:
            kept = f"{len(entries) - half} of {len(entries)} entries stay as they are"
            spent.warnings.append(f"no answer had room for all notes; {kept}")
            text = "\n".join(entry.text for entry in entries[half:])
            if half:
                older_tokens = self._counter.count("\n".join(entry.text for entry in entries[:half]))
                target = max(target_tokens - self._counter.count(text), older_tokens // 4, 1)
                older = await self._reflect(entries[:half], target, guidance, spent)
                text, model = f"{older.text}\n{text}", older.model
        return Reflected(
            text=text,
            current_task=best.current_task,
            suggested_response=best.suggested_response,
            usage=spent.usage,
            model=model,
            calls=spent.calls,
            warnings=tuple(spent.warnings),
        )


def _data(entries: Sequence[Observation], level: int, target_tokens: int, smallest: float, guidance: str | None) -> str:
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
