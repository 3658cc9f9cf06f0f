"""Render messages as a quoted transcript for the Observer.

Headings, labels and speakers begin at the margin. Further lines of a message are indented and memory's tags are
escaped, so that no message can imitate the frame around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from diarist.exceptions import ConfigError
from diarist.memory.observational.prompt.threads import by_thread, thread_label
from diarist.memory.observational.roles.answer_checks import label
from diarist.memory.observational.roles.parsing import escape_tags
from diarist.messages import FilePart, Message, SourcePart, TextPart, ToolPart, as_text
from diarist.tokens import TokenCounter, default_counter

UNDATED = "Date: unknown"
"""The heading of messages without a time stamp."""

_INDENT = "\n    "
_ARGUMENT_LENGTH = 120
_ARGUMENTS_LENGTH = 600
_MARKED_PAUSE = 600.0
_SPACE = re.compile(r"\s+")
_OUTCOMES = {"result": "Tool result", "error": "Tool error", "denied": "Tool call denied"}
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
    """Return the transcript of ``messages``; empty if none has visible content.

    Messages are under headings with their dates. Each is labelled ``[#1]``, ``[#2]`` … by its place in ``messages``, or
    with its number in ``numbers``. Several threads follow each other, named in the headings. System messages,
    reasoning, data parts and messages of memory itself are left out.

    Args:
        tool_result_tokens: A longer tool result keeps its beginning and end, with a note between.
        message_tokens: A longer message is cut, its longest parts first; None never cuts.
        temporal_markers: State the length of a pause of ten minutes or more before a user message.
        name_threads: Name the thread in the headings even if there is only one.
        obscure_threads: Name threads by a hash of their ids.
    """
    zone = load_zone(timezone)
    files = {id(file): number for number, file in numbered_files(messages)}
    counter = counter or default_counter()
    lines: list[str] = []
    threads = by_thread(messages)
    for thread_id, section in threads.items():
        thread = thread_label(thread_id, obscured=obscure_threads) if name_threads or len(threads) > 1 else None
        heading = ""
        before: datetime | None = None
        paired = pair_results(message for _, message in section)
        for number, message in section:
            body = _entries(message, files, paired, counter, tool_result_tokens, message_tokens)
            if not body:
                continue
            said = local_time(message, zone)
            date = date_heading(said, thread)
            if date != heading:
                heading = date
                lines += ["", heading] if lines else [heading]
            pause = name_pause(before, said) if said and before else None
            if pause is not None and temporal_markers and message.role == "user":
                lines.append(f"({pause})")
            before = said or before
            time = f" {said.hour:02}:{said.minute:02}" if said else ""
            mark = label(number if numbers is None else numbers[number - 1])
            lines += (f"{mark}{time} {line}" for line in body)
    return "\n".join(lines)


def numbered_files(messages: Sequence[Message]) -> list[tuple[int, FilePart]]:
    """Return the attachments of ``messages`` with their numbers in the transcript."""
    parts = (part for message in messages if message.role != "system" for part in message.parts)
    return list(enumerate((part for part in parts if isinstance(part, FilePart)), start=1))


def pair_results(messages: Iterable[Message]) -> dict[int, ToolPart | None]:
    """Find calls with their result in a later message of role ``tool``, as after an approval.

    Returns by ``id`` of the parts: for such a result, its call with the result; for the call, None.
    """
    paired: dict[int, ToolPart | None] = {}
    waiting: dict[str, ToolPart] = {}
    for message in messages:
        for part in message.tool_parts:
            if part.state == "call":
                waiting[part.call_id] = part
            elif message.role == "tool" and (call := waiting.pop(part.call_id, None)):
                paired[id(call)] = None
                paired[id(part)] = replace(call, state=part.state, result=part.result)
    return paired


def load_zone(name: str) -> tzinfo:
    """Return the time zone of an IANA name such as ``Europe/Rome``. Raise ConfigError if it is unknown."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError) as error:
        raise ConfigError(f"timezone {name!r} is not a known IANA name like 'Europe/Rome'") from error


def local_time(message: Message, zone: tzinfo) -> datetime | None:
    return None if message.created_at is None else in_zone(message.created_at, zone)


def in_zone(moment: datetime, zone: tzinfo) -> datetime:
    """Convert a moment to a time zone, or to UTC if the result would be out of the range of ``datetime``."""
    try:
        return moment.astimezone(zone)
    except OverflowError:
        return moment.astimezone(UTC)


def date_heading(said: datetime | None, thread: str | None = None) -> str:
    """Return ``Date: 2026-03-02`` or ``Date: 2026-03-02 (thread x)``; ``UNDATED`` without a time."""
    date = f"Date: {said.date()}" if said else UNDATED
    return date if thread is None else f"{date} (thread {thread})"


def name_pause(before: datetime, after: datetime) -> str | None:
    """Return ``2 hours 5 minutes later`` for a pause of ten minutes or more; None for a shorter one."""
    pause = after.timestamp() - before.timestamp()  # subtracting datetimes of one zone ignores changes to summer time
    if pause < _MARKED_PAUSE:
        return None
    minutes = int(pause) // 60
    units = (("day", minutes // 1440), ("hour", minutes // 60 % 24), ("minute", minutes % 60))
    words = [f"{n} {unit}{'s' if n != 1 else ''}" for unit, n in units if n]
    return f"{' '.join(words[:2])} later"


def speaker(message: Message) -> str:
    """Return the speaker's name: ``metadata["name"]`` on one line, else the role."""
    name = message.metadata.get("name")
    if isinstance(name, str) and (clean := _SPACE.sub(" ", name).strip(" :[]<>")):
        return escape_tags(clean[:60])
    return _SPEAKERS.get(message.role, message.role)


def outline_arguments(args: dict[str, object]) -> str:
    """Write arguments as ``city="Rome", days=3`` on one line of at most 600 characters; long values are cut."""
    texts = {name: f'"{value}"' if isinstance(value, str) else as_text(value) for name, value in args.items()}
    outline = ", ".join(f"{name}={shorten(text, _ARGUMENT_LENGTH)}" for name, text in texts.items())
    return shorten(_SPACE.sub(" ", outline), _ARGUMENTS_LENGTH)


def cut_text(text: str, tokens: int, counter: TokenCounter) -> str:
    """Return ``text``, cut to about ``tokens``: two thirds of them from its beginning, one third from its end.

    The cut is based on the average length of a token, so it may be a few percent off. A note in between says how many
    tokens are left out.
    """
    if _bytes(text) <= tokens:  # no token is shorter than a byte
        return text
    total = counter.count(text)
    if total <= tokens:
        return text
    kept = len(text) * tokens // total
    head, tail = text[: kept * 2 // 3], text[len(text) - (kept - kept * 2 // 3) :]
    return f"{head}\n[… {total - tokens:,} of {total:,} tokens left out …]\n{tail}"


def _entries(
    message: Message,
    files: Mapping[int, int],
    paired: Mapping[int, ToolPart | None],
    counter: TokenCounter,
    tool_result_tokens: int,
    limit: int | None,
) -> list[str]:
    """Return an entry for each part of a message that has visible content, with further lines indented."""
    if message.role == "system":
        return []
    who = speaker(message)
    sizes: Sequence[int | None] = message.part_tokens or ()
    if len(sizes) != len(message.parts):
        sizes = [None] * len(message.parts)
    blocks: list[tuple[str, str]] = []
    for part, size in zip(message.parts, sizes, strict=True):
        if isinstance(part, TextPart):
            if text := part.text.strip():
                blocks.append((f"{who}: ", text))
        elif isinstance(part, ToolPart):
            now = paired.get(id(part), part)
            asked = now or part
            name = escape_tags(_SPACE.sub(" ", asked.name))
            call = f"({outline_arguments(asked.args)})"
            if part.state == "call":
                blocks.append((f"Tool call {name}", f"{call} (no result yet)" if now else call))
                continue
            text = part.result_text.strip()
            if size is None or size > tool_result_tokens:
                text = cut_text(text, tool_result_tokens, counter)
            outcome, text = f"{_OUTCOMES[part.state]} {name}", text or "(empty)"
            if message.role == "tool" and asked.args:  # the call is in an earlier message
                blocks.append((outcome, f"{call}: {text}"))
            else:
                if message.role != "tool":
                    blocks.append((f"Tool call {name}", call))
                blocks.append((f"{outcome}: ", text))
        elif isinstance(part, FilePart):
            name = f" {part.name!r}" if part.name else ""
            blocks.append((f"{who}: ", f"(attachment {files[id(part)]}:{name} {part.media_type})"))
        elif isinstance(part, SourcePart):
            blocks.append((f"{who} cited: ", f"{part.title} {part.url}".strip()))
    if message.is_cut:
        blocks.append((f"{who}: ", "(the user stopped the answer here)"))
    if limit is not None and sum(_bytes(text) for _, text in blocks) > limit:
        share = _fair_share([counter.count(text) for _, text in blocks], limit)
        blocks = [(title, cut_text(text, share, counter)) for title, text in blocks]
    # Every kind of line break becomes a plain newline.
    return [f"{title}{_INDENT.join(escape_tags(text).splitlines())}" for title, text in blocks]


def _fair_share(sizes: list[int], limit: int) -> int:
    """Return the size, at least 1, to which larger parts must be cut so that all parts fit into ``limit``."""
    left = limit
    ordered = sorted(sizes)
    for position, size in enumerate(ordered):
        share = left // (len(ordered) - position)
        if size > share:
            return max(1, share)
        left -= size
    return max(1, *ordered)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def shorten(text: str, length: int) -> str:
    """Return the text, cut to ``length`` characters with an ellipsis if it is longer."""
    return text if len(text) <= length else f"{text[: length - 1]}…"
