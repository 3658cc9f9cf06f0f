"""Random conversations of random clients: the active branch is what the client shows, and no prompt has anything else.

Answers are numbered, so that a reader can tell them apart. Questions are few and often repeated. A client keeps no ids,
or an id for each question, also when it edits it, or for each message.
``DIARIST_CONVERSATIONS`` plays more of them; 17,000 make about 100,000 calls.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diarist import Agent, Memory, Tool
from diarist.models.base import ModelRequest
from diarist.storage import InMemoryStorage, SQLiteStorage
from diarist.testing import Reply, ScriptedModel, ToolCall
from tests.properties import examples
from tests.scenarios.kit import observational

CONVERSATIONS = int(os.environ.get("DIARIST_CONVERSATIONS", "2000"))

Act = Literal["continue", "cut", "alone", "regenerate", "edit", "fail"]
Ids = Literal["none", "questions", "all"]
Keeps = Literal["nothing", "call", "text", "one text"]

BEFORE_THE_CALL = "Let me look. "


@dataclass(frozen=True)
class Call:
    """One call of a client.

    Attributes:
        tab: Which of two tabs of a browser makes it; each shows its own history.
        text: The new question, if there is one.
        place: For an edit the question, and for a cut the number of exchanges to keep: counted from the end.
        uses_tool: The model calls a tool before it answers, and says something before the call.
        keeps: How the tab keeps such a step: not at all, with its own id of the call, as its text alone, or as one text
            with the answer, as ``stream.text()`` gives it.
    """

    act: Act
    tab: int
    text: str
    place: int
    uses_tool: bool
    keeps: Keeps


call = st.builds(
    Call,
    act=st.sampled_from(["continue", "continue", "cut", "alone", "regenerate", "edit", "fail"]),
    tab=st.integers(0, 1),
    text=st.sampled_from(["yes", "no", "go on"]),
    place=st.integers(1, 4),
    uses_tool=st.booleans(),
    keeps=st.sampled_from(["nothing", "call", "text", "one text"]),
)
calls = st.lists(call, min_size=2, max_size=10)
kept_ids: st.SearchStrategy[Ids] = st.sampled_from(["none", "questions", "all"])


@dataclass
class Exchange:
    """A question and its answer, as a client shows them; ``steps`` are the ones with tools that it kept, and ``lead``
    is text of such a step in front of the answer."""

    question: str
    answer: str
    ids: tuple[str, str]
    lead: str = ""
    steps: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    gone: set[str] = field(default_factory=set[str])  # of these two, what was forgotten

    @property
    def sent(self) -> list[dict[str, Any]]:
        ids = self.ids
        return [said("user", self.question, ids[0]), *self.steps, said("assistant", self.lead + self.answer, ids[1])]

    @property
    def stored(self) -> list[str]:
        both = {"question": self.question, "answer": self.answer}
        return [text for name, text in both.items() if name not in self.gone]


def said(role: str, text: str, id: str = "") -> dict[str, Any]:
    return {"role": role, "content": text, **({"id": id} if id else {})}


class Conversation:
    """A thread, and the tabs that show it."""

    def __init__(self, memory: Memory, ids: Ids) -> None:
        self.memory, self.ids = memory, ids
        self.uses_tool = self.fails = False
        self.numbers = count(1)
        self.model = ScriptedModel(self.say)
        self.agent = Agent(model=self.model, memory=memory, tools=[Tool(name="look", function=lambda: "seen")])
        self.tabs: list[list[Exchange]] = [[], []]
        self.active: list[Exchange] = []

    def say(self, request: ModelRequest) -> Any:
        if self.fails:
            return RuntimeError("down")
        if self.uses_tool and request.prompt.messages[-1].role != "tool":
            call = ToolCall("look", {}, id="c")  # the same id in each turn
            return Reply(text=BEFORE_THE_CALL, tool_calls=[call])
        return f"answer-{next(self.numbers)}"

    async def call(self, call: Call) -> None:
        """Make a call, and check what the thread and the prompt have then."""
        shown = self.tabs[call.tab]
        self.uses_tool, self.fails = call.uses_tool, call.act == "fail"
        first, question = 0, call.text
        question_id = "" if self.ids == "none" else f"q{next(self.numbers)}"
        match call.act:
            case "cut":
                first = max(0, len(shown) - call.place)
            case "regenerate":
                if len(shown) > 1:
                    question, question_id = shown[-1].question, shown[-1].ids[0]
                shown = shown[:-1]
            case "edit":
                if len(shown) > call.place:
                    question_id = shown[-call.place].ids[0]
                shown = shown[: max(0, len(shown) - call.place)]
            case _:
                pass
        if call.act == "alone" or not shown:  # a client without a history shows what the thread has
            shown, first = self.active, len(self.active)
        given: Any = [*(entry for one in shown[first:] for entry in one.sent), said("user", question, question_id)]
        is_text = len(given) == 1 and not question_id
        try:
            result = await self.agent.generate(question if is_text else given, thread="t")
        except RuntimeError:  # a retry: the same messages once more
            self.fails = False
            result = await self.agent.generate([] if is_text else given, thread="t")
        ids = question_id, f"a{next(self.numbers)}" if self.ids == "all" else ""
        made = Exchange(question, result.text, ids)
        match call.keeps if call.uses_tool else "nothing":
            case "call":
                made.steps = remade(next(self.numbers))
            case "text":
                made.steps = [said("assistant", BEFORE_THE_CALL)]
            case "one text":
                made.lead = BEFORE_THE_CALL
            case _:
                pass
        self.active = self.tabs[call.tab] = [*shown, made]

    @property
    def expected(self) -> list[str]:
        return [text for one in self.active for text in one.stored]

    async def stored(self) -> list[str]:
        rows = await self.memory.messages.list(thread="t")
        return [row.text for row in rows if row.text and not row.tool_parts]

    @property
    def prompted(self) -> list[str]:
        prompt = self.model.requests[-1].prompt.messages
        said = [message.text for message in prompt if message.role in ("user", "assistant")]
        return [text for text in said if "look(" not in text and not text.startswith("(The conversation begins")]


def remade(number: int) -> list[dict[str, Any]]:
    """A step with a tool call as a client keeps it that makes up ids of its own."""
    function = {"name": "look", "arguments": "{}"}
    call = {"id": f"made-up-{number}", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": BEFORE_THE_CALL, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "seen"},
    ]


async def play(memory: Memory, script: list[Call], ids: Ids) -> None:
    talk = Conversation(memory, ids)
    for call in script:
        if call.act == "fail" and not talk.tabs[call.tab]:
            continue  # without a history, a retry cannot be told from a new message
        await talk.call(call)
        assert await talk.stored() == talk.expected
        if memory.config is None:
            assert talk.prompted == talk.expected[:-1]
        else:
            shown = [text for text in talk.prompted if text.startswith("answer")]
            assert len(set(shown)) == len(shown)
            assert set(shown) <= set(talk.expected)
    answers = [row.message.text for row in await memory.storage.list_superseded("t") if row.message.text]
    made = [text for text in (*await talk.stored(), *answers) if text.startswith("answer")]
    assert len(made) == len(set(made))  # no answer is stored twice, on any branch
    for branch in await memory.threads.branches("t") if await memory.storage.get_thread("t") else []:
        await memory.threads.switch_branch("t", branch.id)
        assert (await memory.messages.list(thread="t"))[-1].id == branch.messages[-1].id
        break


@settings(max_examples=examples(60), deadline=None)
@given(script=calls, ids=kept_ids)
async def test_the_active_branch_is_what_the_client_shows(script: list[Call], ids: Ids) -> None:
    await play(Memory(storage=InMemoryStorage(), last_messages=10_000), script, ids)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
@settings(max_examples=CONVERSATIONS // 4, deadline=None)
@given(script=calls, ids=kept_ids)
async def test_the_active_branch_is_what_the_client_shows_in_many_conversations(
    part: int, script: list[Call], ids: Ids
) -> None:
    await play(Memory(storage=InMemoryStorage(), last_messages=10_000), script, ids)


@settings(max_examples=examples(20), deadline=None)
@given(script=calls, ids=kept_ids)
async def test_with_a_diary(script: list[Call], ids: Ids) -> None:
    await play(observational(InMemoryStorage(), message_tokens=8), script, ids)


@settings(max_examples=examples(10), deadline=None)
@given(script=calls, ids=kept_ids)
async def test_in_a_database(script: list[Call], ids: Ids, tmp_path_factory: pytest.TempPathFactory) -> None:
    async with SQLiteStorage(tmp_path_factory.mktemp("branches") / "memory.db") as storage:
        await play(Memory(storage=storage, last_messages=10_000), script, ids)


forgets = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["question", "answer"])), max_size=2)


async def play_and_forget(script: list[tuple[Call, list[tuple[int, str]]]], ids: Ids) -> None:
    """One client, which keeps what was forgotten in its history. Its questions are numbered, too: a forgotten answer
    may have been any, so among equal questions it could be the one of another."""
    talk = Conversation(Memory(storage=InMemoryStorage(), last_messages=10_000), ids)
    for call, gone in script:
        if call.act == "fail" or (call.act == "regenerate" and talk.tabs[0] and talk.tabs[0][-1].gone):
            continue  # to repeat a forgotten question is to ask it again
        if call.act == "edit" and any(one.gone for one in talk.tabs[0]):
            continue  # the client's messages may then be several of the forgotten ones: nothing is superseded in doubt
        text = f"{call.text}-{next(talk.numbers)}"
        await talk.call(replace(call, tab=0, text=text))
        assert await talk.stored() == talk.expected
        assert talk.prompted == talk.expected[:-1]
        rows = [row for row in await talk.memory.messages.list(thread="t") if row.text and not row.tool_parts]
        left = [(one, name) for one in talk.active for name in ("question", "answer") if name not in one.gone]
        gone_ids: set[str] = set()
        for (one, name), row in zip(left, rows, strict=True):
            if (len(talk.active) - 1 - talk.active.index(one), name) in gone:
                one.gone.add(name)
                gone_ids.add(row.id)
        await talk.memory.forget(message_ids=gone_ids, thread="t")
        assert await talk.stored() == talk.expected


@settings(max_examples=examples(60), deadline=None)
@given(script=st.lists(st.tuples(call, forgets), max_size=10), ids=kept_ids)
async def test_forgotten_messages_stay_gone(script: list[tuple[Call, list[tuple[int, str]]]], ids: Ids) -> None:
    await play_and_forget(script, ids)


@pytest.mark.slow
@settings(max_examples=CONVERSATIONS // 4, deadline=None)
@given(script=st.lists(st.tuples(call, forgets), max_size=10), ids=kept_ids)
async def test_forgotten_messages_stay_gone_in_many_conversations(
    script: list[tuple[Call, list[tuple[int, str]]]], ids: Ids
) -> None:
    await play_and_forget(script, ids)
