"""The Observer: turn messages into dated notes with a model.

Three methods, each calling the next, deal with answers that cannot be used: ``observe`` if the model refuses messages,
``_note`` if an answer is cut off, ``_ask`` if it loops, repeats earlier notes, copies the messages, or is cut off
although no fewer can be sent. A ``portion`` is the messages of one call, the first of those that are due.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Literal, NamedTuple

from diarist.exceptions import BadRequestError, ContentFilterError, RoleError
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.log.transitions import newest_hints
from diarist.memory.observational.message_units import whole_units
from diarist.memory.observational.prompt.threads import by_thread
from diarist.memory.observational.prompts import load_prompt
from diarist.memory.observational.roles.answer_checks import (
    cite,
    deduplicate,
    is_copy,
    take_citations,
    without_labels,
)
from diarist.memory.observational.roles.base import Observed
from diarist.memory.observational.roles.calling import (
    MAX_OUTPUT_TOKENS,
    Caller,
    ModelReply,
    RoleModel,
    RolePrompt,
    Spent,
    room_after,
)
from diarist.memory.observational.roles.earlier_notes import select_notes, without_repeats
from diarist.memory.observational.roles.parsing import Notes, escape_tags, parse_notes, read_hint
from diarist.memory.observational.roles.transcript import (
    date_heading,
    load_zone,
    local_time,
    numbered_files,
    render_transcript,
)
from diarist.memory.working.observer_updates import ObserverUpdate, ObserverUpdates, take_section
from diarist.memory.working.rendering import element
from diarist.messages import Message, TextPart
from diarist.models.base import ModelSettings
from diarist.storage.records import Observation
from diarist.tokens import TokenCounter, default_counter

_DEFAULTS = ModelSettings(temperature=0.3, max_output_tokens=MAX_OUTPUT_TOKENS)
_LEAST_WORDS = 60
_SAMPLES, _SAMPLE = 20, 200
_MAX_REFUSALS = 3
"""Refusals of a single unit after which it is skipped."""
_REFUSALS = (BadRequestError, ContentFilterError, RoleError)


class ModelObserver:
    """Observes with a language model.

    Args:
        model: Called without tools, with instructions in the system role and the transcript, as quoted data, in the
            user role. Several models are tried one after the other. If the provider refuses the temperature, the output
            limit or the files, the call is repeated without them, with a warning.
        config: Its ``observation`` has the options; the defaults if None.
        counter: Counts tokens; o200k_base by default.
        working_updates: Set if the Observer also updates working memory.
    """

    def __init__(
        self,
        model: RoleModel,
        config: ObservationalMemoryConfig | None = None,
        *,
        counter: TokenCounter | None = None,
        working_updates: ObserverUpdates | None = None,
    ) -> None:
        self._config = config = config or ObservationalMemoryConfig()
        self._options = options = config.observation
        self._caller = Caller(model, options.model_settings.over(_DEFAULTS), counter)
        self._counter = counter or default_counter()
        self._names_threads = config.scope == "resource"
        asked = [load_prompt("observer_title")] if options.thread_title else []
        asked += [working_updates.instructions] if working_updates else []
        self._instructions = compose_instructions("observer", options.instruction, config.language, *asked)
        self._working_updates = working_updates
        self._reach = inf  # number of messages that fit into one answer, learned from answers that were cut off
        # After refusals, until the refused message is found: the id of the first message, and how many to send from it.
        self._searched = ("", inf)

    async def observe(self, messages: Sequence[Message], *, earlier: Sequence[Observation]) -> Observed:
        """See ``ObserverRole``.

        If an answer was cut off, half as many messages are sent, and about as many in later calls. For a single
        message, a shorter answer is requested; if that fails too, the notes before the cut are kept. If an answer
        copies the messages, another one is requested; if that fails too, fixed rules write the notes. A looping answer
        is retried once, then counts as cut off. An answer that only repeats earlier notes is retried without showing
        them.

        If the model refuses the messages or gives no notes, half as many are sent. A unit that was refused three times
        is skipped, with a note. But if the model refuses a harmless message too, the earlier notes are not shown. If
        that does not help, its error is raised: then it is broken or misconfigured.
        """
        messages = [message for section in by_thread(messages).values() for _, message in section]
        first, count = self._searched
        most = min(self._reach, count) if messages[0].id == first else self._reach
        portion = messages[: _at_most(messages, most)]
        spent, shown = Spent(), earlier
        is_model_checked = False  # whether it accepts a harmless message
        refusals = 0  # of a single unit
        while True:
            try:
                observed, noted = await self._note(portion, shown, spent)
                break
            except _REFUSALS as error:
                if not is_model_checked:
                    is_model_checked = True
                    shown = await self._accepted(portion[0], earlier, spent)
                    if len(shown) < len(earlier):
                        continue
                half = _half_of(portion)
                refusals = refusals + 1 if len(half) == len(portion) else 0
                if refusals == _MAX_REFUSALS:
                    observed, noted = _refused(portion, error, spent, self._config.timezone), len(portion)
                    break
                spent.warnings.append(f"the model refused a call with {len(portion)} messages: {error}")
                portion = half
                self._searched = (portion[0].id, len(portion))  # set now, since a timeout may end this call
        if noted < len(messages):
            short = observed.shortfall or f"{noted} of {len(messages)} messages are noted, the others stay raw"
            observed = replace(observed, unnoted=tuple(message.id for message in messages[noted:]), shortfall=short)
        if len(_threads_of(messages)) > 1:  # a task belongs to one thread
            return replace(observed, current_task=None, suggested_response=None, thread_title=None)
        # A kept title belongs to the earlier entry, whose messages it was made from.
        kept = observed.thread_title == self._title_so_far(messages, earlier)
        return replace(observed, thread_title=None) if kept or not self._options.thread_title else observed

    async def _accepted(self, message: Message, earlier: Sequence[Observation], spent: Spent) -> Sequence[Observation]:
        """Return the earlier notes if the model accepts them with a harmless message, else none. Raise its error if it
        refuses the message alone."""
        try:
            await self._note([_harmless(message)], earlier, spent)
            return earlier
        except _REFUSALS as error:
            if not earlier:
                raise
            await self._note([_harmless(message)], (), spent)
            spent.warnings.append(f"the model refused the earlier notes: {error}")
            return ()

    async def _note(
        self, messages: Sequence[Message], earlier: Sequence[Observation], spent: Spent
    ) -> tuple[Observed, int]:
        """Return the notes of these messages, or of the first ones, and the number of messages that they cover."""
        reach_before, portion = self._reach, messages
        while True:
            answer = await self._ask(portion, earlier, spent)
            if answer is None:
                return Observed(text="", usage=spent.usage, model="", calls=spent.calls), len(portion)
            half = _half_of(portion)
            if answer.fault != "cut" or len(half) == len(portion):
                break
            portion = half
            self._reach = len(half)  # set now, since a timeout may end this call
        if len(portion) == len(messages):  # try more messages next time
            self._reach = max(reach_before, len(portion) + 1, len(portion) * 5 // 4)
        if answer.fault == "copy":
            return await self._without_model(portion, earlier, spent), len(portion)
        return _observed(answer, spent, [entry.text for entry in earlier], portion), len(portion)

    def _title_so_far(self, messages: Sequence[Message], earlier: Sequence[Observation]) -> str | None:
        """Return the title of the only thread of these messages, as the earlier notes have it."""
        (thread,) = _threads_of(messages)
        return newest_hints(earlier, thread if self._names_threads else "").thread_title

    async def _ask(self, portion: Sequence[Message], earlier: Sequence[Observation], spent: Spent) -> _Answer | None:
        """Return the model's answer about these messages; None if none has visible content."""
        config, options = self._config, self._options
        transcript = render_transcript(
            portion,
            timezone=config.timezone,
            counter=self._counter,
            tool_result_tokens=options.tool_result_tokens,
            message_tokens=options.batch_tokens,
            temporal_markers=config.temporal_markers,
            name_threads=self._names_threads,
            obscure_threads=config.obscures_threads,
        )
        if not transcript:
            return None
        working_update = await self._working_updates.open(portion) if self._working_updates else None
        source = without_labels(transcript)
        prompt = self._prompt(transcript, source, earlier, portion, working_update)

        async def ask(prompt: RolePrompt, wish: str = "") -> _Answer:
            wished = replace(prompt, data=f"{prompt.data}\n\n{wish}") if wish else prompt
            reply = await self._caller.ask(wished, spent)
            return _answer_of(reply, transcript, source, len(portion), working_update)

        answer = await ask(prompt)
        if answer.reply.looping:
            answer = await ask(prompt)
        noted = [entry.text for entry in earlier]
        if noted and answer.text and not without_repeats(answer.text, noted):
            # Small models may copy the notes they are shown: ask without showing them.
            prompt = self._prompt(transcript, source, (), portion, working_update)
            answer = await ask(prompt)
        wish = ""
        if answer.fault == "copy":
            words = _words_to_write(self._estimate(transcript))
            wish = load_prompt("observer_copied").format(words=words)
        elif answer.fault == "cut" and len(_half_of(portion)) == len(portion) and not answer.reply.looping:
            room = room_after(self._counter.count(answer.reply.text))
            if room < inf:
                wish = load_prompt("observer_cut").format(tokens=f"{room:,.0f}", words=f"{room * 2 / 3:,.0f}")
        if not wish:
            return answer
        self._reach = max(1, len(portion) // 2)  # set now, since a timeout may end this call
        second = await ask(prompt, wish)
        return answer if second.fault and answer.text else second

    async def _without_model(
        self, portion: Sequence[Message], earlier: Sequence[Observation], spent: Spent
    ) -> Observed:
        from diarist.memory.observational.roles.extractive.observer import ExtractiveObserver  # loaded only if used

        rules = ExtractiveObserver(self._config)
        what = f"the model copied the messages instead of noting them; {len(portion)} are noted by fixed rules"
        observed = await rules.observe(portion, earlier=earlier)
        return replace(observed, usage=spent.usage, calls=spent.calls, warnings=(*spent.warnings, what), shortfall=what)

    def _prompt(
        self,
        transcript: str,
        source: str,
        earlier: Sequence[Observation],
        messages: Sequence[Message],
        working_update: ObserverUpdate | None,
    ) -> RolePrompt:
        texts = [entry.text for entry in earlier]
        notes = select_notes(texts, transcript, self._options.previous_observer_tokens, self._counter.count)
        parts = [f"<earlier-notes>\n{escape_tags(notes)}\n</earlier-notes>"] if notes else []
        parts += [element(working_update.text)] if working_update else []
        parts.append(f"<transcript>\n{transcript}\n</transcript>")
        threads = _threads_of(messages)
        if self._names_threads or len(threads) > 1:
            parts.append(load_prompt("observer_threads"))
        tokens = self._estimate(transcript)
        request = [load_prompt("observer_request").format(size=f"{tokens * 2 // 3:,}", words=_words_to_write(tokens))]
        if self._options.thread_title and len(threads) == 1:
            request.append("Last comes <thread-title>.")
            if title := self._title_so_far(messages, earlier):
                request.append(f"So far the title is {escape_tags(title)!r}: keep it while it fits.")
        parts.append(" ".join([*request, *([working_update.request] if working_update else [])]))
        files = () if self._options.observe_attachments is False else numbered_files(messages)
        return RolePrompt(instructions=self._instructions, data="\n\n".join(parts), files=files, source=source)

    def _estimate(self, text: str) -> int:
        """Return about how many tokens a text has. Of a long text, samples are counted."""
        step = max(_SAMPLE, len(text) // _SAMPLES)
        sample = "".join([text[start : start + _SAMPLE] for start in range(0, len(text), step)])
        return self._counter.count(sample) * len(text) // max(1, len(sample))


def _threads_of(messages: Sequence[Message]) -> set[str]:
    return {message.thread_id or "" for message in messages}


def compose_instructions(name: str, instruction: str | None, language: str | None, *more: str) -> str:
    """Join the prompt of that name, ``more`` prompts, the language and the caller's instruction."""
    parts = [load_prompt(name), *more]
    if language:
        parts.append(f"Write the notes in {language}; leave names and quotations as they are.")
    else:
        parts.append("Write the notes in the language that the user speaks.")
    if instruction:
        parts.append(instruction.strip())
    return "\n\n".join(parts)


class _Answer(NamedTuple):
    """A parsed answer.

    Attributes:
        text: The notes, without citations, which are in ``cited``.
        fault: Why the notes are unusable: there are none (``empty``), they break off (``cut``), or they copy the
            messages (``copy``).
        working_update: Working memory with the answer's update.
    """

    reply: ModelReply
    notes: Notes
    text: str
    cited: dict[str, tuple[int, ...]]
    fault: Literal["", "empty", "cut", "copy"]
    working_update: ObserverUpdate | None
    warning: str


def _answer_of(
    reply: ModelReply, transcript: str, source: str, messages: int, working_update: ObserverUpdate | None
) -> _Answer:
    """Parse an answer. ``source``: the text of the messages; ``messages``: their number."""
    text, section = take_section(reply.text) if working_update else (reply.text, None)
    if working_update:  # half a section would replace all of working memory
        working_update = replace(working_update, section=None if reply.looping or reply.cut else section)
    warning = ""
    if reply.looping:
        kept = deduplicate(text.rpartition("\n")[0] if reply.cut else text) + "\n"
        warning = f"the model repeated itself; {len(kept):,} of {len(text):,} characters are kept"
        text = kept
    notes = parse_notes(text, cut=reply.cut)
    bare, cited = take_citations(notes.text, messages)
    dated = bare
    if bare and not bare.startswith("Date:"):
        headings = {line for line in transcript.splitlines() if line.startswith("Date:")}
        if len(headings) == 1:  # else the notes get the date of older ones
            dated = f"{headings.pop()}\n{bare}"
    fault: Literal["", "empty", "cut", "copy"] = ""
    if not bare:
        fault = "cut" if reply.cut else "empty"
    elif reply.copied or is_copy(bare, source):
        fault = "copy"
    elif not notes.whole or (reply.cut and section is not None):
        fault = "cut"
    return _Answer(reply, notes, dated, cited, fault, working_update, warning)


def _at_most(messages: Sequence[Message], count: float) -> int:
    """Return the largest number up to ``count`` that separates no tool call from its result; at least the first whole
    unit."""
    if count >= len(messages):
        return len(messages)
    whole = whole_units(messages, max(1, int(count)))
    return whole or next(end for end in range(1, len(messages) + 1) if whole_units(messages, end))


def _half_of(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the first half, and at least the first whole unit."""
    return messages[: _at_most(messages, len(messages) // 2)]


def _harmless(message: Message) -> Message:
    """Return a message that any model can note, in the thread of another message."""
    said = [TextPart(text="I am going to Rome next Tuesday, and I take the train at nine.")]
    return replace(message, id=f"{message.id}-harmless", role="user", parts=said, part_tokens=None, sent=None)


def _refused(messages: Sequence[Message], error: Exception, spent: Spent, timezone: str) -> Observed:
    """Return a note in place of messages that the model refuses."""
    many = len(messages) != 1
    what, them = f"{len(messages)} message{'s' if many else ''} could not be noted", "them" if many else "it"
    why = f"the Observer refused {them} each time"
    return Observed(
        text=f"{date_heading(local_time(messages[-1], load_zone(timezone)))}\n- 🟢 {what}: {why}",
        usage=spent.usage,
        model="",
        calls=spent.calls,
        warnings=(*spent.warnings, f"{what}, since {why}; the diary continues without {them}"),
        shortfall=what,
        refused=type(error).__name__,
    )


def _words_to_write(tokens: int) -> str:
    """Return the most words that the notes of a transcript should have, written for the prompt."""
    return f"{max(_LEAST_WORDS, tokens * 2 // 3 // 3):,}"


def _observed(answer: _Answer, spent: Spent, earlier: Sequence[str], portion: Sequence[Message]) -> Observed:
    reply, notes, ids = answer.reply, answer.notes, [message.id for message in portion]
    if not notes.text:
        raise RoleError(f"the Observer {reply.model} gave no notes in {len(reply.text):,} characters")
    text, shortfall = without_repeats(answer.text, earlier) or answer.text, ""
    if not notes.whole:  # although no fewer messages could be sent
        shortfall = "the notes broke off; the rest of the message is not noted"
        text += f"\n- 🟢 {shortfall}"
    return Observed(
        text=text,
        current_task=_bare(notes.current_task, len(portion)),
        suggested_response=_bare(notes.suggested_response, len(portion)),
        thread_title=_bare(notes.thread_title, len(portion)) or None,
        citations=cite(text, answer.cited, ids) if answer.cited else (),
        working_memory=answer.working_update,
        usage=spent.usage,
        model=reply.model,
        calls=spent.calls,
        warnings=(*spent.warnings, *filter(None, [answer.warning])),
        shortfall=shortfall,
    )


def _bare(hint: str | None, messages: int) -> str | None:
    return read_hint([take_citations(hint, messages)[0]]) if hint else hint
