"""The Observer: a model that turns a stretch of conversation into dated notes."""

from __future__ import annotations

from collections.abc import Sequence

from diarist.chunks import Usage
from diarist.memory.observational.calling import MAX_OUTPUT_TOKENS, Caller, Reply
from diarist.memory.observational.echoes import only_repeats, without_repeats
from diarist.memory.observational.parsing import Notes, escape_tags, parse_notes
from diarist.memory.observational.prompts import load_prompt
from diarist.memory.observational.repetition import deduplicate
from diarist.memory.observational.roles import Observed, RoleError
from diarist.memory.observational.transcript import load_zone, render_transcript
from diarist.messages import Message
from diarist.models.base import Model, ModelSettings
from diarist.storage.records import Observation
from diarist.tokens import TokenCounter, default_counter

_DEFAULTS = ModelSettings(temperature=0.3, max_output_tokens=MAX_OUTPUT_TOKENS)
_HIGHLIGHT_SHARE = 0.25


class ModelObserver:
    """Observes with a language model.

    Args:
        model: Called with instructions in the system role and the transcript, as quoted data, in the
            user role; without tools.
        settings: What is set here wins over temperature 0.3 and 100,000 output tokens. Where the
            provider refuses these two, the call is repeated without them, with a warning.
        counter: Counts what is cut; o200k_base by default.
        timezone: IANA name; dates and times of the notes are in it.
        instruction: Appended to the instructions.
        language: Of the notes, such as ``"German"``; the user's own by default.
        previous_tokens: Up to so many tokens of earlier notes are shown whole. Of a longer log only
            its end is shown, and before it the newest lines marked 🔴 or ✅.
        tool_result_tokens: Longer tool results are cut to this in the transcript.
        batch_tokens: A message longer than this is cut; None never cuts.
        temporal_markers: Name pauses of ten minutes or more in the transcript.

    Raises:
        ConfigError: The time zone is not known.
    """

    def __init__(
        self,
        model: Model,
        *,
        settings: ModelSettings | None = None,
        counter: TokenCounter | None = None,
        timezone: str = "UTC",
        instruction: str | None = None,
        language: str | None = None,
        previous_tokens: int = 8_000,
        tool_result_tokens: int = 5_000,
        batch_tokens: int | None = 12_000,
        temporal_markers: bool = False,
    ) -> None:
        load_zone(timezone)
        self._caller = Caller(model, (settings or ModelSettings()).over(_DEFAULTS))
        self._counter = counter or default_counter()
        self._timezone = timezone
        self._instructions = compose_instructions("observer", instruction, language)
        self._previous_tokens = previous_tokens
        self._tool_result_tokens = tool_result_tokens
        self._batch_tokens = batch_tokens
        self._temporal_markers = temporal_markers

    async def observe(self, messages: Sequence[Message], *, earlier: Sequence[Observation]) -> Observed:
        """See ``ObserverRole``. An answer that loops is asked for once more; if the second one loops
        too, what is left of it without the repetitions is taken, with a warning. One that only repeats
        earlier notes is asked for once more without them."""
        transcript = render_transcript(
            messages,
            timezone=self._timezone,
            counter=self._counter,
            tool_result_tokens=self._tool_result_tokens,
            message_tokens=self._batch_tokens,
            temporal_markers=self._temporal_markers,
        )
        if not transcript:
            return _nothing(self._caller.model.id)
        data = self._data(transcript, earlier)
        reply = await self._caller.ask(self._instructions, data)
        if reply.looping:
            first, reply = reply, await self._caller.ask(self._instructions, data)
            reply = _joined(first, reply)
        noted = "\n".join(entry.text for entry in earlier)
        if noted and only_repeats(read_reply(reply)[0].text, noted):
            # A small model that is shown notes may copy them instead of reading on: ask it without them.
            first, reply = reply, await self._caller.ask(self._instructions, self._data(transcript, ()))
            reply = _joined(first, reply)
        return _observed(reply, noted)

    def _data(self, transcript: str, earlier: Sequence[Observation]) -> str:
        notes = shorten_log(earlier, self._previous_tokens, self._counter)
        quoted = f"<earlier-notes>\n{escape_tags(notes)}\n</earlier-notes>\n\n" if notes else ""
        request = load_prompt("observer_request")
        return f"{quoted}<transcript>\n{transcript}\n</transcript>\n\n{request}"


def compose_instructions(name: str, instruction: str | None, language: str | None) -> str:
    """The prompt of that name, then the caller's additions."""
    parts = [load_prompt(name)]
    if language:
        parts.append(f"Write the notes in {language}; leave names and quotations as they are.")
    else:
        parts.append("Write the notes in the language that the user speaks.")
    if instruction:
        parts.append(instruction.strip())
    return "\n\n".join(parts)


def shorten_log(entries: Sequence[Observation], limit: int, counter: TokenCounter) -> str:
    """The entries' text if it has at most ``limit`` tokens.

    Else its end, whole lines with the date heading they stand under, in three quarters of the limit;
    and before it, in the last quarter, the newest of the older lines marked 🔴 or ✅, likewise.
    """
    text = "\n".join(entry.text for entry in entries)
    if sum(entry.tokens for entry in entries) <= limit and counter.count(text) <= limit:
        return text
    lines = _dated_lines(text)
    tail_room = limit - int(limit * _HIGHLIGHT_SHARE)
    tail, rest = _newest(lines, tail_room, counter)
    marked = [line for line in rest if line[1].lstrip(" -*").startswith(("🔴", "✅"))]
    highlights, _ = _newest(marked, limit - tail_room, counter)
    return "\n".join(_with_headings(highlights + tail))


def _dated_lines(text: str) -> list[tuple[str, str]]:
    """Each line with the date heading above it."""
    lines: list[tuple[str, str]] = []
    heading = ""
    for line in text.splitlines():
        if line.startswith("Date:"):
            heading = line
        elif line.strip():
            lines.append((heading, line))
    return lines


def _newest(
    lines: list[tuple[str, str]], room: int, counter: TokenCounter
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The last lines that fit into ``room`` tokens, and those before them."""
    start, heading = len(lines), ""
    while start:
        date, line = lines[start - 1]
        room -= counter.count(line) + 1 + (counter.count(date) + 1 if date != heading else 0)
        if room < 0:
            break
        start, heading = start - 1, date
    return lines[start:], lines[:start]


def _with_headings(lines: list[tuple[str, str]]) -> list[str]:
    shown, out = "", list[str]()
    for date, line in lines:
        if date != shown:
            out.append(date)
            shown = date
        out.append(line)
    return out


def _observed(reply: Reply, earlier: str) -> Observed:
    notes, warnings = read_reply(reply)
    if not notes.text:
        raise RoleError(f"the Observer {reply.model} gave no notes; it answered {reply.text[:200]!r}")
    return Observed(
        text=without_repeats(notes.text, earlier),
        current_task=notes.current_task,
        suggested_response=notes.suggested_response,
        usage=reply.usage,
        model=reply.model,
        calls=reply.calls,
        warnings=warnings,
    )


def read_reply(reply: Reply) -> tuple[Notes, tuple[str, ...]]:
    """The notes of an answer and its warnings; a loop in it is cut out, with a warning more."""
    if not reply.looping:
        return parse_notes(reply.text), reply.warnings
    kept = deduplicate(reply.text)
    warning = f"the model repeated itself; {len(kept):,} of {len(reply.text):,} characters are kept"
    return parse_notes(kept), (*reply.warnings, warning)


def _joined(first: Reply, second: Reply) -> Reply:
    return Reply(
        text=second.text,
        usage=first.usage + second.usage,
        model=second.model,
        calls=first.calls + second.calls,
        looping=second.looping,
        warnings=first.warnings + second.warnings,
    )


def _nothing(model: str) -> Observed:
    return Observed(text="", current_task=None, suggested_response=None, usage=Usage(), model=model, calls=0)
