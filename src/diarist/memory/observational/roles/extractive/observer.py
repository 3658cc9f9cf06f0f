"""The Observer that needs no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from diarist.chunks import Usage
from diarist.memory.observational.prompt.threads import Section, by_thread, thread_label
from diarist.memory.observational.roles.base import Observed
from diarist.memory.observational.roles.extractive.candidates import Candidates
from diarist.memory.observational.roles.extractive.choosing import choose, compose
from diarist.memory.observational.roles.extractive.hints import find_hints
from diarist.memory.observational.roles.extractive.lines import Line, read_lines, write_lines
from diarist.memory.observational.roles.parsing import escape_tags
from diarist.memory.observational.roles.transcript import date_heading, load_zone, local_time, speaker
from diarist.messages import Message
from diarist.storage.records import Observation

MODEL = "extractive"
"""What ``Observed.model`` and ``Reflected.model`` say."""

_FIRST_WORDS = 200


class ExtractiveObserver:
    """Picks lines out of a conversation by fixed rules: offline, at no cost, always the same.

    It keeps, in the speakers' own words, what people state about themselves, their decisions, plans and
    changes, requests and questions; what the assistant answers, promises and finishes; and of each tool
    call the short arguments and the telling fields or lines of the result. Days such as "next Friday" get
    their date. The notes are about a third of what people say and a fifteenth of what tools return.

    It is simpler than a model, and it shows, since it understands nothing. It does not resolve "he" or
    "there", does not put together what is said over several messages, misses irony and whatever is worded
    unusually, and takes its cues from English: of other languages it keeps sentences with numbers, names and
    question marks, and first sentences. A change is noted as one, but the older note stays.

    Args:
        timezone: IANA name; dates and times of the notes are in it.
        name_threads: Name the thread even where all messages are of one.
        obscure_threads: Name threads by a hash of their ids.

    Raises:
        ConfigError: The time zone is not known.
    """

    def __init__(self, *, timezone: str = "UTC", name_threads: bool = False, obscure_threads: bool = False) -> None:
        self._zone = load_zone(timezone)
        self._name_threads = name_threads
        self._obscure_threads = obscure_threads

    async def observe(self, messages: Sequence[Message], *, earlier: Sequence[Observation]) -> Observed:
        """See ``ObserverRole``. Usage is zero and ``calls`` is 0.

        Where everything was noted before, the text is the main point of it again rather than empty.
        """
        visible = [message for message in messages if message.role != "system"]
        noted = [line.text for entry in earlier for line in read_lines(entry.text)]
        threads = by_thread(visible)
        task, response = find_hints(visible) if len(threads) == 1 else (None, None)
        sections = [self._lines(section, noted) for section in threads.values()]
        if self._name_threads or len(sections) > 1:
            labels = (thread_label(id, obscured=self._obscure_threads) for id in threads)
            sections = [_headed(section, label) for section, label in zip(sections, labels, strict=True)]
        lines = [line for section in sections for line in section]
        text = escape_tags(write_lines(lines))
        return Observed(
            text=text,
            current_task=task,
            suggested_response=response,
            citations=_citations(text, lines, [message.id for message in visible]),
            usage=Usage(),
            model=MODEL,
            calls=0,
        )

    def _lines(self, section: Section, noted: Sequence[str]) -> list[Line]:
        return (
            list(compose(choose(self._collect(section, noted))))
            or list(compose(choose(self._collect(section, ()))[:1]))
            or self._first_words(section)
        )

    def _first_words(self, section: Section) -> list[Line]:
        """The beginning of the first text, where there is nothing but signs or code."""
        for number, message in section:
            if text := " ".join(message.text.lstrip()[:_FIRST_WORDS].split()):
                said = local_time(message, self._zone)
                return [
                    Line(
                        date=date_heading(said),
                        mark="🟢",
                        time=f"{said:%H:%M}" if said else "",
                        text=f"{speaker(message)} said: {text}",
                        messages=(number - 1,),
                    )
                ]
        return []

    def _collect(self, section: Section, noted: Sequence[str]) -> Candidates:
        candidates = Candidates(noted)
        for number, message in section:
            candidates.add(number - 1, message, local_time(message, self._zone))
        candidates.close()
        return candidates


def _headed(section: Sequence[Line], thread: str) -> list[Line]:
    return [replace(line, date=f"{line.date} (thread {thread})") for line in section]


def _citations(text: str, lines: Sequence[Line], ids: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """For each line of ``text``, which has the headings as well, the ids of its messages."""
    notes = (tuple(ids[place] for place in line.messages) for line in lines)
    return tuple(() if row.startswith("Date:") else next(notes, ()) for row in text.splitlines())
