"""The Observer: a model that turns a stretch of conversation into dated notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from math import inf
from typing import NamedTuple

from diarist.chunks import Usage
from diarist.memory.observational.log.transitions import derive_hints
from diarist.memory.observational.prompts import load_prompt
from diarist.memory.observational.roles.base import Observed, RoleError
from diarist.memory.observational.roles.calling import (
    MAX_OUTPUT_TOKENS,
    Caller,
    Question,
    Reply,
    RoleModel,
    room_after,
)
from diarist.memory.observational.roles.citations import cite, take_citations
from diarist.memory.observational.roles.dated_lines import DatedLine, dated_lines
from diarist.memory.observational.roles.echoes import only_repeats, without_repeats
from diarist.memory.observational.roles.parsing import Notes, escape_tags, parse_notes
from diarist.memory.observational.roles.repetition import deduplicate
from diarist.memory.observational.roles.transcript import load_zone, numbered_files, render_transcript
from diarist.memory.working.keeping import Keeper, Keeping, take_section
from diarist.memory.working.rendering import element
from diarist.messages import Message
from diarist.models.base import ModelSettings
from diarist.storage.records import Observation
from diarist.tokens import TokenCounter, default_counter

_DEFAULTS = ModelSettings(temperature=0.3, max_output_tokens=MAX_OUTPUT_TOKENS)
_HIGHLIGHT_SHARE = 0.25
_NOTHING = Observed(text="", current_task=None, suggested_response=None, usage=Usage(), model="", calls=0)


class ModelObserver:
    """Observes with a language model.

    Args:
        model: Called with instructions in the system role and the transcript, as quoted data, in the
            user role; without tools. Several models are tried one after the other.
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
        attachments: Show images and files themselves; where the model refuses them, the call is repeated without,
            with a warning. The transcript names them in any case.
        thread_title: Ask for a title of the thread.
        keeper: Have it keep working memory, too.
        name_threads: The notes are about several threads: name them, even where all messages are of one.
        obscure_threads: Name threads by a hash of their ids.

    Raises:
        ConfigError: The time zone is not known.
    """

    def __init__(
        self,
        model: RoleModel,
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
        attachments: bool = True,
        thread_title: bool = False,
        keeper: Keeper | None = None,
        name_threads: bool = False,
        obscure_threads: bool = False,
    ) -> None:
        load_zone(timezone)
        self._caller = Caller(model, (settings or ModelSettings()).over(_DEFAULTS), counter)
        self._counter = counter or default_counter()
        self._lines = _Remembering(self._counter)
        self._timezone = timezone
        asked = [load_prompt("observer_title")] if thread_title else []
        asked += [keeper.instructions] if keeper else []
        self._instructions = compose_instructions("observer", instruction, language, *asked)
        self._previous_tokens = previous_tokens
        self._tool_result_tokens = tool_result_tokens
        self._batch_tokens = batch_tokens
        self._temporal_markers = temporal_markers
        self._attachments = attachments
        self._thread_title = thread_title
        self._keeper = keeper
        self._name_threads = name_threads
        self._obscure_threads = obscure_threads

    async def observe(self, messages: Sequence[Message], *, earlier: Sequence[Observation]) -> Observed:
        """See ``ObserverRole``. An answer that loops is asked for once more; if the second one loops
        too, what is left of it without the repetitions is taken, with a warning. One that was cut off at the
        output limit is asked for once more, shorter: what it had not reached would never be noted. One that
        only repeats earlier notes is asked for once more without them."""
        transcript = render_transcript(
            messages,
            timezone=self._timezone,
            counter=self._counter,
            tool_result_tokens=self._tool_result_tokens,
            message_tokens=self._batch_tokens,
            temporal_markers=self._temporal_markers,
            name_threads=self._name_threads,
            obscure_threads=self._obscure_threads,
        )
        if not transcript:
            return _NOTHING
        keeping = await self._keeper.open(messages) if self._keeper else None
        question = self._question(transcript, earlier, messages, keeping)
        reply = await self._caller.ask(question)
        if reply.looping:
            first, reply = reply, await self._caller.ask(question)
            reply = _joined(first, reply)
        elif reply.cut:
            reply = await self._shorter(question, reply)
        reply, section = self._without_section(reply)
        noted, answer = [entry.text for entry in earlier], _answer_of(reply, transcript, len(messages))
        if noted and only_repeats(answer.text, noted):
            # A small model that is shown notes may copy them instead of reading on: ask it without them.
            first, reply = reply, await self._caller.ask(self._question(transcript, (), messages, keeping))
            reply, section = self._without_section(_joined(first, reply))
            answer = _answer_of(reply, transcript, len(messages))
        observed = _observed(reply, answer, noted, [message.id for message in messages])
        observed = replace(observed, working_memory=keeping.answered(section) if keeping else None)
        if len(_threads_of(messages)) > 1:  # whose task would it be?
            return replace(observed, current_task=None, suggested_response=None, thread_title=None)
        return observed if self._thread_title else replace(observed, thread_title=None)

    async def _shorter(self, question: Question, cut: Reply) -> Reply:
        """A shorter answer than the one that was cut off; that one where the other is no use."""
        tokens = self._counter.count(cut.text)
        room = room_after(tokens)
        if room == inf:
            return cut
        wish = (
            f"An earlier answer was cut off after {tokens:,} tokens. "
            f"Answer for the whole transcript in fewer than {room:,.0f} tokens, about {room * 2 / 3:,.0f} words."
        )
        second = await self._caller.ask(replace(question, data=f"{question.data}\n\n{wish}"))
        joined = _joined(cut, second)
        useless = second.looping or not parse_notes(second.text).text
        useless = useless or (second.cut and self._counter.count(second.text) < room / 2)
        return replace(joined, text=cut.text, model=cut.model, looping=False, cut=True) if useless else joined

    def _question(
        self,
        transcript: str,
        earlier: Sequence[Observation],
        messages: Sequence[Message],
        keeping: Keeping | None,
    ) -> Question:
        notes = shorten_log(earlier, self._previous_tokens, self._lines)
        parts = [f"<earlier-notes>\n{escape_tags(notes)}\n</earlier-notes>"] if notes else []
        parts += [element(keeping.text)] if keeping else []
        parts.append(f"<transcript>\n{transcript}\n</transcript>")
        if self._name_threads or len(_threads_of(messages)) > 1:
            parts.append(load_prompt("observer_threads"))
        request = [load_prompt("observer_request"), *self._title_request(earlier, messages)]
        parts.append(" ".join([*request, *([keeping.request] if keeping else [])]))
        files = numbered_files(messages) if self._attachments else ()
        return Question(instructions=self._instructions, data="\n\n".join(parts), files=files)

    def _without_section(self, reply: Reply) -> tuple[Reply, str | None]:
        """The answer without its section about working memory, and that section, but not where the answer loops or
        was cut off: the section replaces all of working memory."""
        if self._keeper is None:
            return reply, None
        text, section = take_section(reply.text)
        return replace(reply, text=text), None if reply.looping or reply.cut else section

    def _title_request(self, earlier: Sequence[Observation], messages: Sequence[Message]) -> Iterator[str]:
        threads = _threads_of(messages)
        if self._thread_title and len(threads) == 1:
            yield "Last comes <thread-title>."
            entries = [replace(entry, state="active") for entry in earlier]
            if title := derive_hints(entries, threads.pop() if self._name_threads else "").thread_title:
                yield f"So far the title is {escape_tags(title)!r}: keep it while it fits."


def _threads_of(messages: Sequence[Message]) -> set[str]:
    return {message.thread_id or "" for message in messages}


def compose_instructions(name: str, instruction: str | None, language: str | None, *more: str) -> str:
    """The prompt of that name and ``more`` of ours, then the caller's additions."""
    parts = [load_prompt(name), *more]
    if language:
        parts.append(f"Write the notes in {language}; leave names and quotations as they are.")
    else:
        parts.append("Write the notes in the language that the user speaks.")
    if instruction:
        parts.append(instruction.strip())
    return "\n\n".join(parts)


def shorten_log(entries: Sequence[Observation], limit: int, counter: TokenCounter) -> str:
    """The entries' text if its entries, counted one by one, have at most ``limit`` tokens.

    Else its end, whole lines with the date heading they stand under, in three quarters of the limit;
    and before it, in the last quarter, the newest of the older lines marked 🔴 or ✅, likewise.
    """
    texts = [entry.text for entry in entries]
    notes = dated_lines(texts)
    sizes = [_size(text, lines, counter) for text, lines in zip(texts, notes, strict=True)]
    if sum(sizes) <= limit:
        return "\n".join(texts)
    room = tail_room = limit - int(limit * _HIGHLIGHT_SHARE)
    start = len(notes)
    while sizes[start - 1] <= room:  # whole entries; not all of them fit
        start -= 1
        room -= sizes[start]
    part, rest = _newest(notes[start - 1], room, counter)
    older = chain.from_iterable((*notes[: start - 1], rest))
    marked = [line for line in older if line.bare.startswith(("🔴", "✅"))]
    highlights, _ = _newest(marked, limit - tail_room, counter)
    return "\n".join(_with_headings([*highlights, *part, *chain.from_iterable(notes[start:])]))


def _size(text: str, lines: Sequence[DatedLine], counter: TokenCounter) -> int:
    """Tokens of an entry, with the heading if it stands under one that came before it. Counted, not believed."""
    heading = lines[0].heading if lines else ""
    inherited = counter.count(heading) + 1 if heading and not text.startswith(heading) else 0
    return counter.count(text) + 1 + inherited


def _newest(
    lines: Sequence[DatedLine], room: int, counter: TokenCounter
) -> tuple[Sequence[DatedLine], Sequence[DatedLine]]:
    """The last lines that fit into ``room`` tokens, and those before them."""
    start, heading = len(lines), ""
    while start:
        date, line, _ = lines[start - 1]
        room -= counter.count(line) + 1 + (counter.count(date) + 1 if date != heading else 0)
        if room < 0:
            break
        start, heading = start - 1, date
    return lines[start:], lines[:start]


def _with_headings(lines: list[DatedLine]) -> list[str]:
    shown, out = "", list[str]()
    for date, line, _ in lines:
        if date != shown:
            out.append(date)
            shown = date
        out.append(line)
    return out


class _Remembering:
    """Counts earlier notes, most of which it has counted for the call before."""

    def __init__(self, counter: TokenCounter) -> None:
        self.name = counter.name
        self.count = lru_cache(maxsize=1024)(counter.count)


class _Answer(NamedTuple):
    """The notes of an answer; ``text`` is theirs without what is ``cited``."""

    notes: Notes
    text: str
    cited: dict[str, tuple[int, ...]]
    warnings: tuple[str, ...]


def _answer_of(reply: Reply, transcript: str, messages: int) -> _Answer:
    notes, warnings = read_reply(reply)
    text, cited = take_citations(notes.text, messages)
    return _Answer(notes, _dated(text, transcript), cited, warnings)


def _dated(text: str, transcript: str) -> str:
    """Notes without a date stand under that of the transcript, where it has one: else under that of older notes."""
    headings = {line for line in transcript.splitlines() if line.startswith("Date:")}
    return f"{headings.pop()}\n{text}" if text and not text.startswith("Date:") and len(headings) == 1 else text


def _observed(reply: Reply, answer: _Answer, earlier: Sequence[str], message_ids: Sequence[str]) -> Observed:
    notes, bare, cited, warnings = answer
    if not notes.text:
        raise RoleError(f"the Observer {reply.model} gave no notes in {len(reply.text):,} characters")
    text = without_repeats(bare, earlier)
    return Observed(
        text=text,
        current_task=_bare(notes.current_task, len(message_ids)),
        suggested_response=_bare(notes.suggested_response, len(message_ids)),
        thread_title=_bare(notes.thread_title, len(message_ids)),
        citations=cite(text, cited, message_ids) if cited else (),
        usage=reply.usage,
        model=reply.model,
        calls=reply.calls,
        warnings=warnings,
    )


def _bare(hint: str | None, messages: int) -> str | None:
    return None if hint is None else take_citations(hint, messages)[0] or None


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
        cut=second.cut,
        warnings=first.warnings + second.warnings,
    )
