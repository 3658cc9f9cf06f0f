"""Models and systems for evaluations, by ``module:object`` names: they answer by fixed rules."""

from __future__ import annotations

import re
from pathlib import Path

from diarist import Usage
from diarist.evals import Context, Question, Session
from diarist.exceptions import BadRequestError, ModelConnectionError, ModelResponseError
from diarist.models.base import ModelRequest
from diarist.testing import Reply, ScriptedModel, ToolCall

_FACTS = {
    "Where does Bea live?": ("Trieste", "Trieste"),
    "How many cats?": ("third cat", "You have 3 cats."),
    "Which car?": ("Fiat", "A red Fiat."),
    "When was I in Oslo?": ("", "You never mentioned Oslo."),
}


def _answer(request: ModelRequest) -> Reply:
    """Answer from the context alone: without the fact in it, the answer is unknown."""
    context, _, asked = request.text.rpartition("\n\nCurrent Date:")
    question = next(question for question in _FACTS if question in asked)
    fact, answer = _FACTS[question]
    return Reply(text=answer if fact in context else "I do not know.", usage=Usage(input_tokens=100, output_tokens=10))


def _searching(request: ModelRequest) -> Reply:
    """Search once with the tool recall, if there is one, and answer then."""
    if request.tools and "[tool]" not in request.text:
        return Reply(tool_calls=ToolCall("recall", {"mode": "search", "query": "Trieste"}))
    return _answer(request)


def _verdict(request: ModelRequest) -> Reply:
    """Say yes unless the answer is unknown."""
    response = re.search(r"Model Response: (.*)", request.text)
    unknown = response is not None and "do not know" in response[1]
    return Reply(text="no" if unknown else "yes", usage=Usage(input_tokens=50, output_tokens=1))


def _notes(request: ModelRequest) -> Reply:
    """Note what users said."""
    transcript = request.text.rpartition("<transcript>")[2]
    said = re.findall(r"^\[#(\d+)\] [\d:]+ User: (.*)$", transcript, re.MULTILINE)
    lines = "\n".join(f"- 🔴 User stated: {text} [#{number}]" for number, text in said) or "- 🟢 Nothing. [#1]"
    text = f"<diary>\nDate: 2023-05-20\n{lines}\n</diary>"
    return Reply(text=text, usage=Usage(input_tokens=200, output_tokens=20))


def _broken(request: ModelRequest) -> Reply:
    raise ModelResponseError("the server answers with nonsense")


def _offline(request: ModelRequest) -> Reply:
    raise ModelConnectionError("connection refused")


def failing(*parts: str) -> ScriptedModel:
    """A reader without a connection for prompts that contain one of these texts."""
    return ScriptedModel(
        lambda request: (_offline if any(part in request.text for part in parts) else _answer)(request), name="reader"
    )


def _unknown(request: ModelRequest) -> Reply:
    raise BadRequestError("the model does not exist", status=404)


def _forgetful(request: ModelRequest) -> Reply:
    return Reply(text="I do not know.", usage=Usage(input_tokens=100, output_tokens=10))


def silent(request: ModelRequest) -> Reply:
    return Reply(text="", usage=Usage(input_tokens=50, output_tokens=1))


offline = ScriptedModel(_offline, name="offline")
observer = ScriptedModel(_notes, name="observer")
reader = ScriptedModel(_answer, name="reader")
forgetful = ScriptedModel(_forgetful, name="reader")
searching = ScriptedModel(_searching, name="searching")
judge = ScriptedModel(_verdict, name="judge")
unknown = ScriptedModel(_unknown, name="unknown")
broken = ScriptedModel(_broken, name="broken")

PRICES = ["scripted/observer=1/10", "scripted/reader=1/10", "scripted/judge=1/10"]
"""So a call costs: observer $0.0004, reader $0.0002, judge $0.00006."""


class UserMessages:
    """A system of somebody else's: it keeps what users said, in one file per history."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def add(self, history: str, session: Session) -> None:
        path = self.folder / f"{history}-{session.id}.txt"
        path.write_text("\n".join(message.text for message in session.messages if message.role == "user"))

    async def context(self, history: str, question: Question) -> Context:
        return Context(text="\n".join(path.read_text() for path in sorted(self.folder.glob(f"{history}-*.txt"))))


class Numbered(UserMessages):
    """Numbers its contexts, and ends their lines as Windows does."""

    number = 0

    async def context(self, history: str, question: Question) -> Context:
        Numbered.number += 1
        return Context(text=f"context {Numbered.number}\r\n{(await super().context(history, question)).text}")


class NoFolder:
    """A system that takes no folder: only an object of it can be named."""

    async def add(self, history: str, session: Session) -> None: ...

    async def context(self, history: str, question: Question) -> Context:
        return Context(text="")


book = NoFolder()


def _anything(request: ModelRequest) -> Reply:
    """Answer any data set's prompts with something that can be read, for readers and judges."""
    text = request.text
    if "YES or NO" in text:
        said = "NO"
    elif '"verdict"' in text:
        said = '{"verdict": "Correct"}'
    elif '"score"' in text:
        said = '{"score": 1, "covered": true}'
    elif "<final_answer>" in text:
        said = "<final_answer>(a)"
    else:
        said = "7 May 2023" if "support group" in text else "unknown"
    return Reply(text=said, usage=Usage(input_tokens=100, output_tokens=10))


anything = ScriptedModel(_anything, name="anything")
swimmer = ScriptedModel(lambda request: Reply(text="swimming in the pool"), name="swimmer")
