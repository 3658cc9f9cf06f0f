"""Write stored messages as short dated texts for the agent's model, within a token limit. Cuts are marked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from diarist.memory.memory_note import quote
from diarist.memory.observational.roles.answer_checks import label
from diarist.memory.observational.roles.parsing import escape_tags
from diarist.memory.observational.roles.transcript import load_zone, local_time, render_transcript, speaker
from diarist.memory.rows import seq_of
from diarist.messages import FilePart, Message, SourcePart, TextPart, ToolPart, as_text
from diarist.storage.records import Hit
from diarist.tokens import TokenCounter

_SHARE = 8
_SPACE = re.compile(r"\s+")


class Slice(NamedTuple):
    """A piece of a text, and the index of the character after it."""

    text: str
    end: int


class Pages:
    """Writes texts of at most ``tokens``, with dates and times in a time zone."""

    def __init__(self, tokens: int, *, counter: TokenCounter, timezone: str) -> None:
        self.tokens, self._counter = tokens, counter
        self._timezone, self._zone = timezone, load_zone(timezone)

    def fits(self, text: str) -> bool:
        return self._counter.count(text) <= self.tokens

    def messages(self, rows: Sequence[Message], *, newest: bool = False, spare: int = 0) -> tuple[str, list[Message]]:
        """Return a transcript of as many of ``rows`` as fit, labelled with their numbers, and the rows in it.

        Long messages are cut to an eighth of the limit. At least one row is taken, cut as far as needed.

        Args:
            newest: Take from the end of ``rows``.
            spare: Tokens to reserve for other text.
        """
        room = max(1, self.tokens - spare)
        for cut in (room // _SHARE, room // (4 * _SHARE), 8):
            taken: list[Message] = []
            text = ""
            for row in reversed(rows) if newest else rows:
                more = [row, *taken] if newest else [*taken, row]
                longer = self._transcript(more, max(8, cut))
                if self._counter.count(longer) > room:
                    break
                taken, text = more, longer
            if taken:
                return text, taken
        row = rows[-1] if newest else rows[0]
        return self.slice(self._transcript([row], 8), 0, spare=spare).text, [row]

    def _transcript(self, rows: Sequence[Message], cut: int) -> str:
        transcript = render_transcript(
            rows,
            timezone=self._timezone,
            counter=self._counter,
            tool_result_tokens=cut,
            message_tokens=cut,
            numbers=[seq_of(row) for row in rows],
        )
        return quote(transcript)

    def hit(self, hit: Hit, thread: str | None) -> str:
        """Return a search result as one line. ``thread``: the name of its thread, if that is not the current one."""
        row = hit.message
        said = local_time(row, self._zone)
        when = f"{said:%Y-%m-%d %H:%M}" if said else "date unknown"
        where = f" ({thread})" if thread else ""
        return f"- {when}{where} {label(seq_of(row))} {speaker(row)}: {one_line(hit.excerpt)}"

    def day(self, row: Message) -> str:
        said = local_time(row, self._zone)
        return f"{said:%Y-%m-%d}" if said else "unknown"

    def slice(self, text: str, start: int, *, spare: int = 0) -> Slice:
        """Return as much of ``text`` from ``start`` on as fits; at least one character."""
        room = max(1, self.tokens - spare)
        piece = quote(text[start : start + 8 * room])
        size = len(text[start : start + 8 * room])
        while size > 1 and (count := self._counter.count(piece)) > room:
            size = max(1, min(size - 1, size * room // count))
            piece = quote(text[start : start + size])
        return Slice(piece, start + size)


def one_line(text: str) -> str:
    """Return ``text`` on one line, with the tags of memory escaped."""
    return escape_tags(quote(_SPACE.sub(" ", text).strip()))


def full_parts(message: Message) -> list[str]:
    """Return the texts of a message's parts in full, without empty ones."""
    texts: list[str] = []
    for part in message.parts:
        match part:
            case TextPart():
                texts.append(part.text.strip())
            case ToolPart():
                call = f"Tool call {part.name}({as_text(part.args)})"
                texts.append(call if part.state == "call" else f"{call}\nTool {part.state}: {part.result_text}")
            case FilePart():
                texts.append(f"(attachment: {part.name or ''} {part.media_type} {part.url or ''})")
            case SourcePart():
                texts.append(f"{part.title} {part.url}".strip())
            case _:
                pass
    return list(filter(None, texts))
