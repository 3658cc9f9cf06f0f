"""The interface of a data set, and what their readers share."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, cast

import orjson

from diarist.evals.items import History, Question, Session, session_text
from diarist.evals.records import Record
from diarist.exceptions import ConfigError, InputError, ModelResponseError, described
from diarist.messages import Json, Message, Role

T = TypeVar("T")
_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """The judgement of one answer.

    Attributes:
        score: From 0 to 1, by the data set's own metric.
        correct: For metrics that say yes or no.
        label: The judge's word, such as ``yes`` or ``Hallucination``.
        details: Further numbers, for the data set's summary.
    """

    score: float
    correct: bool | None = None
    label: str = ""
    details: dict[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One question as one system answered it in one run: the records of a run's folder.

    A failed item has the score 0, or what it got without the replies of the judge that failed.

    Attributes:
        answer: Empty if the record is lost.
    """

    question: Record
    answer: Record
    judgement: Record

    @property
    def type(self) -> str:
        return str(self.question["type"])

    @property
    def score(self) -> float:
        return float(self.judgement["score"])

    @property
    def correct(self) -> bool | None:
        """Return the verdict; None if there is no judge, or its metric says neither yes nor no."""
        return self.judgement["correct"]

    @property
    def label(self) -> str:
        return str(self.judgement.get("label") or "")

    @property
    def error(self) -> str | None:
        """Return why the item failed, or None."""
        return self.judgement.get("error")

    def detail(self, name: str) -> Json:
        """Return a number of ``Grade.details``; None if the item has none, since it failed."""
        details: dict[str, Json] = self.judgement.get("details") or {}
        return details.get(name)


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of a data set's own summary. ``share``: it is a share, shown in percent."""

    name: str
    value: float | None
    share: bool = True


class Ask(Protocol):
    """Asks the judge."""

    async def __call__(self, prompt: str, read: Callable[[str], T], *, about: str = "") -> T | None:
        """Send a prompt, and return what ``read`` makes of the reply. The report shows prompts' subjects and replies.

        Args:
            read: Raises ModelResponseError for a reply that it cannot read.
            about: The subject of the prompt, if an item needs several.

        Returns:
            None if there is no reply that can be read. It must count as wrong; the item is listed as failed.
        """
        ...


class Dataset(ABC):
    """A data set.

    Args:
        path: Its file or folder.
        reading: How the reader is asked, for data sets that know several ways.
        prompts: A JSON file of prompts that replace those of ``prompts/<name>.json``.

    Attributes:
        title, paper, source: Name, paper, and where to get the data, which diarist does not contain.
        metric: The paper's metric in words; the mean of ``Grade.score`` is this metric.
        judge: ``required``, ``optional`` or ``none``.
        interleaved: True if questions are asked in the middle of a history.
        each_session: True if notes must be made after every session.
        reader_tokens, judge_tokens: Maximum tokens of an answer and of a judgement.
        exact_prompts: True if the judge is asked in the published words.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    source: ClassVar[str]
    metric: ClassVar[str]
    judge: ClassVar[str] = "required"
    interleaved: ClassVar[bool] = False
    each_session: ClassVar[bool] = False
    exact_prompts: ClassVar[bool] = False
    judge_tokens: ClassVar[int] = 1_000
    reader_tokens: int = 500

    def __init__(self, path: Path, *, reading: str = "con", prompts: Path | None = None) -> None:
        if not path.exists():
            raise InputError(f"{path} does not exist. {self.title} is not part of diarist; get it from {self.source}")
        self.path, self.reading = path, reading
        self.prompts = _prompts(self.name)
        self.own_prompts = prompts is not None
        if prompts is not None:
            given = _object(load_json(prompts), str(prompts))
            if unknown := sorted(given.keys() - self.prompts.keys()):
                names = ", ".join(sorted(self.prompts))
                raise InputError(f"{prompts}: no prompt is called {unknown[0]!r}; {self.title} has {names}")
            for name, text in given.items():
                slots = set(_SLOT.findall(self.prompts[name]))
                if wrong := sorted(set(_SLOT.findall(str(text))) - slots):
                    named = ", ".join(f"{{{slot}}}" for slot in sorted(slots))
                    raise InputError(f"{prompts}: prompt {name!r} has no slot {{{wrong[0]}}}; it has {named}")
                self.prompts[name] = str(text)

    @cached_property
    def histories(self) -> list[History]:
        """Return all histories, in the file's order. Raises InputError."""
        try:
            found = list(self.read())
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{self.path} is not in the format of {self.title}: {described(error)}") from error
        if not found:
            raise InputError(f"{self.path} holds no histories")
        return found

    @cached_property
    def fingerprint(self) -> str:
        """Return a hash of the histories, without the questions."""
        digest = hashlib.sha256()
        for history in self.histories:
            digest.update(history.id.encode())
            for session in history.sessions:
                digest.update(f"\0{session.id}\0{session.date}\0{session_text(session)}".encode("utf-8", "replace"))
        return digest.hexdigest()

    @abstractmethod
    def read(self) -> Iterator[History]:
        """Yield the histories. Raises InputError with the place in the file."""

    @abstractmethod
    def reader_prompt(self, question: Question, context: str) -> str:
        """Return the prompt for the reader."""

    @abstractmethod
    async def grade(self, question: Question, response: str, ask: Ask | None) -> Grade:
        """Judge a response: the reader's answer, notes (one per line), or the context, as ``question.asks`` says.

        Args:
            ask: Asks the judge; None if there is none, which is possible unless ``judge`` is ``required``.
        """

    def sessions_text(self, sessions: Sequence[Session]) -> str:
        """Return raw sessions in the form that readers get them in."""
        return "".join(f"\n[{session.date or session.id}]\n\n{session_text(session)}\n" for session in sessions)

    @classmethod
    def summary(cls, judged: Sequence[Judged]) -> list[Figure]:
        """Return the numbers that the paper reports beyond the averages of ``Grade.score``."""
        return []

    def fill(self, prompt: str, **values: str) -> str:
        """Return a prompt with its ``{slots}`` filled; texts that are filled in are not looked at again."""
        return _SLOT.sub(lambda match: values.get(match[1], match[0]), self.prompts[prompt])


def _prompts(name: str) -> dict[str, str]:
    text = files("diarist.evals").joinpath("prompts", f"{name}.json").read_bytes()
    return {key: value for key, value in orjson.loads(text).items() if not key.startswith("_")}


def load_json(path: Path) -> Json:
    """Return the JSON value of a file, or the list of its JSON lines. Raises InputError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as first:
        try:
            return [orjson.loads(line) for line in data.splitlines() if line.strip()]
        except orjson.JSONDecodeError:
            raise InputError(f"{path} is neither JSON nor JSON lines: {first}") from first


def load_items(path: Path) -> list[dict[str, Json]]:
    """Return the objects of a file: of its list, its lines, or its one object. Raises InputError."""
    raw = load_json(path)
    return objects(raw if isinstance(raw, list) else [raw], str(path))


def objects(value: Json, where: str) -> list[dict[str, Json]]:
    """Return a list of JSON objects. Raises InputError."""
    if not isinstance(value, list):
        raise InputError(f"{where}: a list is expected, not {type(value).__name__}")
    return [_object(item, f"{where}, item {number}") for number, item in enumerate(cast("list[Json]", value), 1)]


def _object(value: Json, where: str) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise InputError(f"{where}: an object is expected, not {type(value).__name__}")
    return cast("dict[str, Json]", value)


def field_of(value: dict[str, Json], name: str, where: str) -> Json:
    """Return a field that must have a value. Raises InputError."""
    found = value.get(name)
    if found is None:
        raise InputError(f"{where}: the field {name!r} is missing")
    return found


def message(id: str, role: str, text: str, **more: Any) -> Message:
    """Return a message of a user or an assistant; other roles count as the assistant's."""
    known: Role = "user" if role == "user" else "assistant"
    return Message.user(text, id=id, **more) if known == "user" else Message.assistant(text, id=id, **more)


def moment_or_none(*numbers: int) -> datetime | None:
    """Return the time in UTC of year, month, day and so on; None for a day that does not exist."""
    try:
        return datetime(*numbers, tzinfo=UTC)
    except ValueError:
        return None


def json_reply(reply: str) -> dict[str, Json]:
    """Return the JSON object in a judge's reply. Raises ModelResponseError."""
    start, end = reply.find("{"), reply.rfind("}")
    try:
        return _object(orjson.loads(reply[start : end + 1] if start >= 0 else ""), "reply")
    except (orjson.JSONDecodeError, InputError) as error:
        raise ModelResponseError(f"the judge's reply is no JSON object: {reply:.200}") from error


def required(ask: Ask | None) -> Ask:
    """Return the judge. Raises ConfigError if there is none."""
    if ask is None:
        raise ConfigError("a judge is needed; add --judge")
    return ask


def judged_mean(values: Sequence[float]) -> float | None:
    """Return the mean; None for no values."""
    return sum(values) / len(values) if values else None
