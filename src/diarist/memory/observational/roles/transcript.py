"""Messages as a quoted transcript: what an Observer reads, and nothing that could command it.

Headings, labels and speakers begin at the margin; every further line of a message is indented and
our own tags are escaped, so that nothing inside a message can pass for the frame around it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from diarist.exceptions import ConfigError
from diarist.memory.observational.prompt.threads import by_thread, thread_label
from diarist.memory.observational.roles.citations import label
from diarist.memory.observational.roles.parsing import escape_tags
from diarist.messages import FilePart, Message, Part, SourcePart, TextPart, ToolPart, as_text
from diarist.tokens import TokenCounter, default_counter

UNDATED = "Date: unknown"
"""The heading of messages without a time stamp."""

_INDENT = "\n    "
_ARGUMENT_LENGTH = 120
_ARGUMENTS_LENGTH = 600
_MARKED_PAUSE = 600.0
_SPACE = re.compile(r"\s+")
_SPEAKERS = {"user": "User", "assistant": "Assistant", "tool": "Tool"}


def render_transcript(
    messages: Sequence[Message],
    *,
    timezone: str = "UTC",
    counter: TokenCounter | None = None,
    tool_result_tokens: int = 5_000,
    message_tokens: int | None = None,
    temporal_markers: bool = False,
    name_threads: bool = False,
    obscure_threads: bool = False,
    numbers: Sequence[int] | None = None,
) -> str:
    """The transcript of ``messages``; empty when none of them says anything.

    Each message is labelled ``[#1]``, ``[#2]`` … by its place in ``messages``, under a heading with its
    date. Messages of several threads stand thread by thread, and the headings name the thread. System messages,
    reasoning, data parts and what memory itself sent are left out.

    Args:
        messages: In their order.
        timezone: IANA name; dates and 24-hour times are in it.
        counter: Counts what is cut; o200k_base by default.
        tool_result_tokens: A longer tool result keeps its beginning and end, with a note between.
        message_tokens: A longer message is cut, its longest parts first; None never cuts.
        temporal_markers: Say how long a pause of ten minutes or more before a user message was.
        name_threads: Name the thread in the headings even where there is only one.
        obscure_threads: Name threads by a hash of their ids.
        numbers: Of the messages, for their labels; 1, 2 … by default.

    Raises:
        ConfigError: The time zone is not known.
    """
    zone = load_zone(timezone)
    files = {id(file): number for number, file in numbered_files(messages)}
    writer = _Writer(counter or default_counter(), tool_result_tokens, message_tokens, files)
    lines: list[str] = []
    threads = by_thread(messages)
    for thread_id, section in threads.items():
        thread = thread_label(thread_id, obscured=obscure_threads) if name_threads or len(threads) > 1 else None
        heading = ""
        before: datetime | None = None
        for number, message in section:
            body = writer.message(message)
            if not body:
                continue
            said = local_time(message, zone)
            if (date := date_heading(said, thread)) != heading:
                heading = date
                lines += ["", heading] if lines else [heading]
            if temporal_markers and message.role == "user" and said and before:
                lines += [f"({pause})"] if (pause := name_pause(before, said)) else []
            before = said or before
            time = f" {said:%H:%M}" if said else ""
            mark = label(number if numbers is None else numbers[number - 1])
            lines += (f"{mark}{time} {line}" for line in body)
    return "\n".join(lines)


def numbered_files(messages: Sequence[Message]) -> list[tuple[int, FilePart]]:
    """The attachments of ``messages`` with the numbers that they have in the transcript."""
    parts = (part for message in messages if message.role != "system" for part in message.parts)
    return list(enumerate((part for part in parts if isinstance(part, FilePart)), start=1))


def load_zone(name: str) -> tzinfo:
    """The time zone of an IANA name such as ``Europe/Rome``; ConfigError when there is none."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConfigError(f"timezone {name!r} is not a known IANA name like 'Europe/Rome'") from error


def local_time(message: Message, zone: tzinfo) -> datetime | None:
    return None if message.created_at is None else in_zone(message.created_at, zone)


def in_zone(moment: datetime, zone: tzinfo) -> datetime:
    """The moment there; in UTC where the first or last day of the calendar has no such time, as .NET's empty date."""
    try:
        return moment.astimezone(zone)
    except OverflowError:
        return moment.astimezone(UTC)


def date_heading(said: datetime | None, thread: str | None = None) -> str:
    """``Date: 2026-03-02``, or the undated heading; with the thread's name, ``Date: 2026-03-02 (thread x)``."""
    date = f"Date: {said:%Y-%m-%d}" if said else UNDATED
    return date if thread is None else f"{date} (thread {thread})"


def name_pause(before: datetime, after: datetime) -> str | None:
    """``2 hours 5 minutes later``, for a pause of ten minutes or more; None for a shorter one."""
    pause = after.timestamp() - before.timestamp()  # in one time zone, a difference of datetimes forgets summer time
    if pause < _MARKED_PAUSE:
        return None
    minutes = int(pause) // 60
    units = (("day", minutes // 1440), ("hour", minutes // 60 % 24), ("minute", minutes % 60))
    words = [f"{n} {unit}{'s' if n != 1 else ''}" for unit, n in units if n]
    return f"{' '.join(words[:2])} later"


def speaker(message: Message) -> str:
    """Who speaks: the message's ``metadata["name"]`` on one line, else its role."""
    name = message.metadata.get("name")
    if isinstance(name, str) and (clean := _SPACE.sub(" ", name).strip(" :[]<>")):
        return escape_tags(clean[:60])
    return _SPEAKERS.get(message.role, message.role)


def outline_arguments(args: dict[str, object]) -> str:
    """Arguments as ``city="Rome", days=3``, long values cut: on one line, at most 600 characters."""
    outline = ", ".join(f"{name}={_shorten(_as_argument(value), _ARGUMENT_LENGTH)}" for name, value in args.items())
    return _shorten(_SPACE.sub(" ", outline), _ARGUMENTS_LENGTH)


def cut_text(text: str, tokens: int, counter: TokenCounter) -> str:
    """``text`` if it has at most ``tokens``, else its first two thirds and last third of that.

    The cut goes by the average length of a token, so the result may be some percent off. A note in
    between says how many tokens are left out.
    """
    if _bytes(text) <= tokens:  # no token is shorter than a byte
        return text
    total = counter.count(text)
    if total <= tokens:
        return text
    kept = len(text) * tokens // total
    head, tail = text[: kept * 2 // 3], text[len(text) - (kept - kept * 2 // 3) :]
    return f"{head}\n[… {total - tokens:,} of {total:,} tokens left out …]\n{tail}"


class _Writer:
    """Writes the lines of one message after the other."""

    def __init__(
        self, counter: TokenCounter, tool_result_tokens: int, limit: int | None, files: Mapping[int, int]
    ) -> None:
        self._counter = counter
        self._tool_result_tokens = tool_result_tokens
        self._limit = limit
        self._files = files

    def message(self, message: Message) -> list[str]:
        """One entry per part that says something, with further lines indented."""
        if message.role == "system":
            return []
        who = speaker(message)
        sizes: Sequence[int | None] = message.part_tokens or ()
        if len(sizes) != len(message.parts):
            sizes = [None] * len(message.parts)
        sized = zip(message.parts, sizes, strict=True)
        blocks = [block for part, size in sized for block in self._part(part, who, size)]
        if self._limit is not None:
            blocks = self._cut(blocks, self._limit)
        return [f"{title}{_quote(text)}" for title, text in blocks]

    def _part(self, part: Part, who: str, size: int | None) -> list[tuple[str, str]]:
        """``size``: tokens of the part, where they are known."""
        match part:
            case TextPart() if part.text.strip():
                return [(f"{who}: ", part.text.strip())]
            case ToolPart():
                return self._tool(part, size)
            case FilePart():
                name = f" {part.name!r}" if part.name else ""
                return [(f"{who}: ", f"(attachment {self._files[id(part)]}:{name} {part.media_type})")]
            case SourcePart():
                return [(f"{who} cited: ", f"{part.title} {part.url}".strip())]
            case _:
                return []

    def _tool(self, part: ToolPart, size: int | None) -> list[tuple[str, str]]:
        name = _SPACE.sub(" ", part.name)
        call = (f"Tool call {escape_tags(name)}", f"({outline_arguments(part.args)})")
        if part.state == "call":
            return [(call[0], f"{call[1]} (no result yet)")]
        outcome = {"result": "Tool result", "error": "Tool error", "denied": "Tool call denied"}
        text = part.result_text.strip()
        if size is None or size > self._tool_result_tokens:
            text = cut_text(text, self._tool_result_tokens, self._counter)
        return [call, (f"{outcome[part.state]} {escape_tags(name)}: ", text or "(empty)")]

    def _cut(self, blocks: list[tuple[str, str]], limit: int) -> list[tuple[str, str]]:
        if sum(_bytes(text) for _, text in blocks) <= limit:
            return blocks
        share = _fair_share([self._counter.count(text) for _, text in blocks], limit)
        return [(title, cut_text(text, share, self._counter)) for title, text in blocks]


def _fair_share(sizes: list[int], limit: int) -> int:
    """The largest size at which all parts, cut to it, fit into ``limit`` together; at least 1."""
    left = limit
    ordered = sorted(sizes)
    for position, size in enumerate(ordered):
        share = left // (len(ordered) - position)
        if size > share:
            return max(1, share)
        left -= size
    return max(1, *ordered)


def _quote(text: str) -> str:
    """On as many lines as it has, all but the first indented; no line end of any kind survives."""
    return _INDENT.join(escape_tags(text).splitlines())


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _as_argument(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else as_text(value)


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
