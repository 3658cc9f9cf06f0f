"""Current task and suggested response, from the last thing that the user asked for."""

from __future__ import annotations

from collections.abc import Sequence

from diarist.memory.observational.roles.extractive.candidates import speaker_of
from diarist.memory.observational.roles.extractive.sentences import shorten, split_sentences
from diarist.memory.observational.roles.extractive.weighing import Kind, Speaker, weigh
from diarist.messages import Message

_LENGTH = 300
_QUESTION_MARKS = ("?", "？", "؟")


def find_hints(messages: Sequence[Message]) -> tuple[str | None, str | None]:
    """Current task and suggested response; None where nothing shows them, and among named people."""
    speakers = {speaker_of(message) for message in messages}
    users = [message for message in messages if message.role == "user" and message.text.strip()]
    if not users or Speaker.NAMED in speakers:
        return None, None
    wish = _wish(users[-1].text)
    task = f"The user's last request: {wish}" if wish else None
    last = messages[-1]
    if last is users[-1]:
        return task, f"Answer the user: {wish}" if wish else None
    if last.role != "assistant":
        return task, None
    if question := _question(last.text):
        return task, f"Wait for the user's answer to: {question}"
    return f"{task} (reported done)" if task and _reports_done(last.text) else task, None


def _wish(text: str) -> str | None:
    """What the user asked for, else what they said; None for a mere thank-you."""
    weighed = [weigh(sentence, Speaker.USER) for sentence in split_sentences(text)]
    said = [each for each in weighed if each.worth > 0]
    asked = [each for each in said if each.kind in (Kind.ASKED, Kind.REQUESTED)]
    return shorten(" ".join(each.text for each in (asked or said)[-2:]), _LENGTH) or None


def _reports_done(text: str) -> bool:
    return any(weigh(each, Speaker.ASSISTANT).kind is Kind.DONE for each in split_sentences(text))


def _question(text: str) -> str | None:
    asked = [each for each in split_sentences(text)[-3:] if each.endswith(_QUESTION_MARKS)]
    return shorten(asked[-1], _LENGTH) if asked else None
