"""Histories that branch: what a client that keeps no ids means when it regenerates, edits, cuts or compacts."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from diarist import Agent, Memory, Message, tool
from diarist.exceptions import ConfigError, InputError, NotFoundError, ThreadBusyError
from diarist.messages import TextPart, ToolPart
from diarist.processors import RegexFilter
from diarist.storage import InMemoryStorage, Storage
from diarist.testing import ScriptedModel, ToolCall
from diarist.vectors import InMemoryVectorStore
from tests.memory.semantic.kit import TopicEmbedder
from tests.memory.stores import made_storage, storage
from tests.scenarios.kit import observational, words

__all__ = ["made_storage", "storage"]

Given = list[dict[str, Any]]
LENGTH = 12


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": words(text, LENGTH)}


def numbered_answers() -> ScriptedModel:
    numbers = count(1)
    return ScriptedModel(lambda _: words(f"answer-{next(numbers)}", LENGTH))


class Client:
    """Five exchanges with an agent, and a copy of them without ids.

    Attributes:
        copy: The client's messages.
    """

    def __init__(self, storage: Storage, *, observing: bool) -> None:
        self.model = numbered_answers()
        self.memory = observational(storage) if observing else Memory(storage=storage, last_messages=100)
        self.agent = Agent(model=self.model, memory=self.memory)
        self.copy: Given = []

    async def talk(self) -> None:
        for number in range(1, 6):
            await self.send([*self.copy, user(f"question-{number}")])
        await self.memory.settled()

    async def send(self, given: Given) -> None:
        """Send a history; the client then shows it, and the answer."""
        result = await self.agent.generate(given, thread="t")
        self.copy = [*given, {"role": "assistant", "content": result.text}]

    @property
    def prompt(self) -> list[str]:
        """The first words of the messages of the last prompt, without memory's notes."""
        return [
            message.text.split("</memory-note>")[-1].split()[0]
            for message in self.model.requests[-1].prompt.messages
            if message.role != "system"
        ]

    async def rows(self) -> list[str]:
        return [row.text.split()[0] for row in await self.memory.messages.list(thread="t")]


SAID = [f"{kind}-{number}" for number in range(1, 6) for kind in ("question", "answer")]


@pytest.fixture(params=[False, True], ids=["history", "diary"])
async def client(request: pytest.FixtureRequest, storage: Storage) -> Client:
    made = Client(storage, observing=request.param)
    await made.talk()
    assert await made.rows() == SAID
    return made


ROWS: list[tuple[str, Any, list[str]]] = [
    ("whole history", lambda copy: [*copy, user("question-6")], [*SAID, "question-6", "answer-6"]),
    ("regenerate", lambda copy: copy[:-1], [*SAID[:-1], "answer-6"]),
    ("edit the last", lambda copy: [*copy[:-2], user("edited-5")], [*SAID[:-2], "edited-5", "answer-6"]),
    ("edit the second", lambda copy: [*copy[:2], user("edited-2")], [*SAID[:2], "edited-2", "answer-6"]),
    ("compacted", lambda copy: [user("summary"), *copy[-2:], user("question-6")], [*SAID, "question-6", "answer-6"]),
    ("first and last", lambda copy: [copy[0], copy[-1], user("question-6")], [*SAID, "question-6", "answer-6"]),
    ("cut", lambda copy: [*copy[-4:], user("question-6")], [*SAID, "question-6", "answer-6"]),
    ("only the new", lambda copy: [user("question-6")], [*SAID, "question-6", "answer-6"]),
]


@pytest.mark.parametrize(("change", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
async def test_one_more_call(client: Client, change: Any, expected: list[str]) -> None:
    await client.send(change(client.copy))
    assert await client.rows() == expected
    assert max(Counter(client.prompt).values()) == 1
    assert client.prompt[-1] == expected[-2]
    await client.memory.settled()
    gone = set(SAID) - set(expected)
    shown = "".join(message.text for message in client.model.requests[-1].prompt.messages)
    assert not any(f"{text} " in shown for text in gone)
    superseded = {one.messages[-1].text.split()[0] for one in await client.memory.threads.branches("t")}
    assert superseded == ({SAID[-1]} if gone else set())


async def test_after_a_message_was_forgotten(client: Client) -> None:
    rows = await client.memory.messages.list(thread="t")
    await client.memory.forget(message_ids=[rows[2].id], thread="t")
    await client.send([*client.copy, user("question-6")])
    expected = [*SAID[:2], *SAID[3:], "question-6", "answer-6"]
    assert await client.rows() == expected
    assert max(Counter(client.prompt).values()) == 1
    await client.send(client.copy[:-1])
    assert await client.rows() == [*expected[:-1], "answer-7"]


async def test_a_new_question_is_not_taken_for_the_old_words_of_a_changed_one(client: Client) -> None:
    rows = await client.memory.messages.list(thread="t")
    for place in (3, 8):
        await client.memory.messages.update(rows[place].id, thread="t", text=words("changed", LENGTH))
    await client.send([*client.copy[:-2], user("another-5")])
    assert await client.rows() == [*SAID[:3], "changed", *SAID[4:-2], "another-5", "answer-6"]
    assert client.prompt[-1] == "another-5"


# --- options of the call ---------------------------------------------------------------------------------------


async def test_append_supersedes_nothing(client: Client) -> None:
    await client.agent.generate(client.copy[:-1], thread="t", on_divergence="append")
    assert await client.rows() == [*SAID, "answer-6"]
    await client.agent.generate([*client.copy[:2], user("edited-2")], thread="t", on_divergence="append")
    assert await client.rows() == [*SAID, "answer-6", "edited-2", "answer-7"]
    assert await client.memory.threads.branches("t") == []


async def test_error_refuses(client: Client) -> None:
    client.agent = Agent(model=client.model, memory=client.memory, default_options={"on_divergence": "error"})
    for given in (client.copy[:-1], [*client.copy[:2], user("edited-2")]):
        with pytest.raises(InputError, match=r"'t' behind message .*on_divergence"):
            await client.agent.generate(given, thread="t")
    await client.send([*client.copy, user("question-6")])
    assert await client.rows() == [*SAID, "question-6", "answer-6"]
    with pytest.raises(ConfigError, match="'branch', 'append', 'error', not 'fork'"):
        await client.agent.generate("hi", thread="t", on_divergence="fork")  # type: ignore[arg-type]


async def test_a_read_only_call_shows_the_branch_and_changes_nothing(client: Client) -> None:
    await client.agent.generate([*client.copy[:-2], user("edited-5")], thread="t", read_only=True)
    assert client.prompt[-2:] == ["answer-4", "edited-5"]
    assert max(Counter(client.prompt).values()) == 1
    await client.agent.generate(client.copy[:-1], thread="t", read_only=True)
    assert client.prompt[-2:] == ["answer-4", "question-5"]
    assert await client.rows() == SAID


async def test_a_client_that_leaves_the_branch_is_told(client: Client) -> None:
    rows = await client.memory.messages.list(thread="t")
    parts = [
        part
        async for part in client.agent.stream(client.copy[:-1], thread="t")
        if getattr(part, "type", "") == "data-thread-diverged"
    ]
    data: Any = {"threadId": "t", "action": "branch", "after": rows[-2].id, "superseded": [rows[-1].id]}
    assert [getattr(part, "data", None) for part in parts] == [data]
    await client.agent.generate([user("summary"), {"role": "assistant", "content": "Go on."}, user("q-6")], thread="t")
    events = [e for e in await client.memory.storage.list_events("thread:t") if e.type == "data-thread-diverged"]
    assert [event.data["action"] for event in events] == ["branch", "append"]


# --- equal messages, other branches, ids ---------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["yes", [{"role": "user", "content": "yes"}]], ids=["text", "list"])
async def test_two_equal_messages_in_a_row_stay_two(storage: Storage, given: Any) -> None:
    memory = Memory(storage=storage)
    agent = Agent(model=ScriptedModel(lambda _: "ok"), memory=memory)
    for _ in range(2):
        await agent.generate(given, thread="t")
    assert [row.text for row in await memory.messages.list(thread="t")] == ["yes", "ok", "yes", "ok"]


async def test_two_tabs_take_turns(client: Client) -> None:
    shared = list(client.copy)
    tabs: dict[str, Given] = {"left": shared, "right": shared}
    for number in range(3):
        for name in tabs:
            await client.send([*tabs[name], user(f"{name}-{number}")])
            tabs[name] = client.copy
            assert await client.rows() == [entry["content"].split()[0] for entry in client.copy]
            assert max(Counter(client.prompt).values()) == 1
    assert len(await client.memory.storage.list_superseded("t")) == 6  # no message is stored twice


async def test_a_client_that_keeps_ids_regenerates(storage: Storage) -> None:
    memory = Memory(storage=storage)
    agent = Agent(model=numbered_answers(), memory=memory)
    copy: list[Message] = []
    for number in range(1, 4):
        copy.append(Message.user(f"question-{number}", id=f"u{number}"))
        copy += (await agent.generate(list(copy), thread="t")).messages
    await agent.generate(copy[:-1], thread="t")
    await agent.generate([*copy[:2], Message.user("edited-2", id="e2")], thread="t")
    texts = [row.text.split()[0] for row in await memory.messages.list(thread="t")]
    assert texts == ["question-1", "answer-1", "edited-2", "answer-5"]


async def test_a_client_with_its_own_ids_for_answers_goes_on(storage: Storage) -> None:
    memory = Memory(storage=storage)
    agent = Agent(model=numbered_answers(), memory=memory)
    shown: list[Message] = []
    for number in range(1, 4):
        shown.append(Message.user(f"question-{number}", id=f"q{number}"))
        answer = (await agent.generate(shown, thread="t", on_divergence="error")).messages[-1]
        shown.append(replace(answer, id=f"own-{number}"))
    rows = await memory.messages.list(thread="t")
    assert [row.text for row in rows] == [message.text for message in shown]
    assert await memory.threads.branches("t") == []
    shown[-1] = Message.assistant("shortened", id="own-3")
    await agent.generate([*shown, Message.user("question-4", id="q4")], thread="t")
    assert [row.text for row in await memory.messages.list(thread="t")][4:7] == [
        "question-3",
        "shortened",
        "question-4",
    ]


async def test_an_edited_first_question_is_new(storage: Storage) -> None:
    model = ScriptedModel(lambda request: f"answer to {request.prompt.messages[-1].text}")
    memory = Memory(storage=storage)
    agent = Agent(model=model, memory=memory)
    for text in ("one", "ONE", "ONE"):  # the last one asks for another answer
        answer = await agent.generate([Message.user(text, id="q1")], thread="t")
    given = [Message.user("ONE", id="q1"), Message.assistant(answer.text), Message.user("two", id="q2")]
    await agent.generate(given, thread="t")
    assert [row.text for row in await memory.messages.list(thread="t")][:5] == [
        "one",
        "answer to one",
        "ONE",
        "answer to ONE",
        "two",
    ]
    assert model.requests[-1].prompt.messages[-1].text == "two"


async def three_exchanges(storage: Storage) -> tuple[Agent, Memory, ScriptedModel, list[Message]]:
    """Return an agent, its parts, and the client's messages: its own ids for questions, memory's for answers."""
    model = ScriptedModel(lambda request: f"answer to {request.prompt.messages[-1].text}")
    memory = Memory(storage=storage, last_messages=100)
    agent = Agent(model=model, memory=memory)
    shown: list[Message] = []
    for number in (1, 2, 3):
        shown.append(Message.user(f"question {number}", id=f"q{number}"))
        shown.append((await agent.generate(shown, thread="t")).messages[-1])
    return agent, memory, model, shown


@pytest.mark.parametrize("text", ["question 3", "edited"])
@pytest.mark.parametrize("kept", [0, 2], ids=["only the question", "first exchange"])
async def test_a_question_without_its_history_is_answered_again(storage: Storage, kept: int, text: str) -> None:
    agent, memory, model, shown = await three_exchanges(storage)
    for _ in range(2):
        await agent.generate([*shown[:kept], Message.user(text, id="q3")], thread="t")
        assert model.requests[-1].prompt.messages[-1].text == text
    rows = [row.text for row in await memory.messages.list(thread="t")]
    edited = ["edited", "answer to edited"] if text == "edited" else []
    assert rows == [message.text for message in shown] + edited


async def test_an_older_question_without_its_history_supersedes_nothing(storage: Storage) -> None:
    agent, memory, model, shown = await three_exchanges(storage)
    await agent.generate([shown[2]], thread="t")
    assert model.requests[-1].prompt.messages[-1].text == "question 2"
    rows = [row.text for row in await memory.messages.list(thread="t")]
    assert rows == [*(message.text for message in shown), "answer to question 2"]


async def test_a_first_question_sent_again_gets_another_answer(storage: Storage) -> None:
    answers = iter(("first", "second", "third"))
    memory = Memory(storage=storage)
    agent = Agent(model=ScriptedModel(lambda request: next(answers)), memory=memory)
    question = Message.user("Where to?", id="q1")
    await agent.generate([question], thread="t")
    await agent.generate([question], thread="t")
    assert [row.text for row in await memory.messages.list(thread="t")] == ["Where to?", "second"]
    (branch,) = await memory.threads.branches("t")
    assert [row.text for row in branch.messages] == ["first"]
    with pytest.raises(InputError, match="leaves thread 't' behind message 'q1'"):
        await agent.generate([question], thread="t", on_divergence="error")
    await agent.generate([question], thread="t", on_divergence="append")
    assert [row.text for row in await memory.messages.list(thread="t")] == ["Where to?", "second", "third"]


@pytest.mark.parametrize("text", ["Where to?", "edited"])
async def test_a_question_before_a_long_turn_is_answered_again(storage: Storage, text: str) -> None:
    memory = Memory(storage=storage)
    calls = [ToolPart(call_id=str(n), name="look", args={}, state="result", result=n) for n in range(120)]
    steps = [Message(role="assistant", parts=[call]) for call in calls]
    question = Message.user("Where to?", id="q1")
    await memory.messages.save([question, *steps, Message.assistant("To Rome.")], thread="t")
    agent = Agent(model=ScriptedModel("To Oslo."), memory=memory)
    await agent.generate([Message.user(text, id="q1")], thread="t")
    texts = [row.text for row in await memory.messages.list(thread="t") if row.text]
    assert texts == (["Where to?", "To Oslo."] if text == "Where to?" else ["Where to?", "To Rome.", text, "To Oslo."])


@pytest.mark.parametrize("first", [RuntimeError("away"), "First."])
async def test_a_question_sent_again_calls_no_tool_again(storage: Storage, first: Any) -> None:
    @tool
    def pay() -> str:
        """Pay."""
        paid.append("once")
        return "paid"

    paid: list[str] = []
    memory = Memory(storage=storage)
    model = ScriptedModel(ToolCall("pay"), first, "Done.")
    agent = Agent(model=model, memory=memory, tools=[pay])
    question = Message.user("Pay.", id="q1")
    with nullcontext() if isinstance(first, str) else pytest.raises(RuntimeError, match="away"):
        await agent.generate([question], thread="t")
    assert (await agent.generate([question], thread="t")).text == "Done."
    assert paid == ["once"]
    assert "paid" in model.requests[-1].text
    assert [row.text for row in await memory.messages.list(thread="t")] == ["Pay.", "", "Done."]


async def test_an_edited_question_without_the_middle_is_answered_again(storage: Storage) -> None:
    agent, memory, model, shown = await three_exchanges(storage)
    await agent.generate([*shown[:4], Message.user("edited", id="q3")], thread="t")
    await agent.generate([*shown[:2], Message.user("edited", id="q3")], thread="t")
    assert model.requests[-1].prompt.messages[-1].text == "edited"
    rows = [row.text for row in await memory.messages.list(thread="t")]
    assert rows == [*(message.text for message in shown[:4]), "edited", "answer to edited"]


@pytest.mark.parametrize("kept", [0, 2], ids=["only the question", "first exchange"])
@pytest.mark.parametrize("text", ["question 2", "edited"])
async def test_a_question_that_is_superseded_is_asked_again(storage: Storage, kept: int, text: str) -> None:
    agent, memory, _, shown = await three_exchanges(storage)
    await memory.threads.rewind("t", to=shown[1].id)
    await agent.generate([*shown[:kept], Message.user(text, id="q2")], thread="t")
    rows = [row.text for row in await memory.messages.list(thread="t")]
    assert rows == ["question 1", "answer to question 1", text, f"answer to {text}"]


async def test_an_edited_question_is_not_shown_twice_after_a_failure(storage: Storage) -> None:
    agent, memory, model, _ = await three_exchanges(storage)
    failing = Agent(model=ScriptedModel(RuntimeError("down")), memory=memory)
    with pytest.raises(RuntimeError):
        await failing.generate([Message.user("edited", id="q3")], thread="t")
    await agent.generate([Message.user("edited", id="q3")], thread="t")
    assert [message.text for message in model.requests[-1].prompt.messages].count("edited") == 1


@pytest.mark.parametrize("forgets", [False, True])
async def test_an_edited_question_before_the_last_one_is_shown_as_edited(storage: Storage, forgets: bool) -> None:
    agent, memory, model, shown = await three_exchanges(storage)
    await memory.messages.save([Message.user(f"old {id}", id=id) for id in ("q4", "q5")], thread="t")
    if forgets:
        await memory.forget(message_ids=["q5"], thread="t")
    edited = Message.user("edited", id="q4")
    await agent.generate([*shown, edited, Message.user("old q5", id="q5"), Message.user("new", id="q6")], thread="t")
    asked = ["edited", "new"] if forgets else ["edited", "old q5", "new"]
    assert [message.text for message in model.requests[-1].prompt.messages][6:] == asked
    assert [row.text for row in await memory.messages.list(thread="t")][6:] == [*asked, "answer to new"]


async def test_an_edited_question_that_was_forgotten_stays_gone(storage: Storage) -> None:
    agent, memory, model, shown = await three_exchanges(storage)
    shown[4:] = [Message.user("secret", id="q3")]
    shown.append((await agent.generate(shown, thread="t")).messages[-1])
    edited = (await memory.messages.list(thread="t"))[4]
    await memory.forget(message_ids=[edited.id, shown[-1].id], thread="t")
    await agent.generate([*shown, Message.user("question 4", id="q4")], thread="t")
    assert "secret" not in model.requests[-1].text
    assert [row.text for row in await memory.messages.list(thread="t")][4:] == ["question 4", "answer to question 4"]


async def test_the_forgotten_text_of_an_edited_question_stays_gone(storage: Storage) -> None:
    agent, memory, _, _ = await three_exchanges(storage)
    for text in ("secret", "edited"):
        await agent.generate([Message.user(text, id="q4")], thread="t")
    await memory.forget(message_ids=["q4"], thread="t")
    with pytest.raises(InputError, match="was forgotten"):
        await agent.generate([Message.user("secret", id="q4")], thread="t")


async def test_forget_reaches_each_text_of_an_edited_question(storage: Storage) -> None:
    agent, memory, _, shown = await three_exchanges(storage)
    for text in ("secret", "secret, too"):
        shown[4:] = [Message.user(text, id="q3")]
        shown.append((await agent.generate(shown, thread="t")).messages[-1])
    edited = (await memory.messages.list(thread="t"))[4]
    await agent.generate([*shown[:4], replace(edited, parts=[TextPart(text="secret again")])], thread="t")
    receipt = await memory.forget(message_ids=["q3"], thread="t")
    assert len(receipt.message_ids) == 4
    left = await memory.messages.list(thread="t") + [one.message for one in await storage.list_superseded("t")]
    assert [row.text for row in left if row.role == "user"] == ["question 1", "question 2"]
    with pytest.raises(InputError, match="was forgotten"):
        await agent.generate([*shown[:4], Message.user("secret", id="q3")], thread="t")


async def test_a_client_cannot_say_which_message_it_edited(storage: Storage) -> None:
    agent, memory, _, shown = await three_exchanges(storage)
    await agent.generate([*shown, replace(Message.user("x"), metadata={"diarist_edited": ["q1"]})], thread="t")
    await agent.generate([*shown, Message.user("y", id="q5")], thread="t")
    assert [row.text for row in await memory.messages.list(thread="t")][6:] == ["y", "answer to y"]


# --- rewind, branches, switch --------------------------------------------------------------------------------------


@pytest.mark.parametrize("redacts", [False, True])
async def test_a_client_edits_its_last_question_under_the_same_id(storage: Storage, redacts: bool) -> None:
    """Chat front ends replace the text and keep the id; the thread may hold a redacted text."""
    model = ScriptedModel(lambda request: f"answer to {request.prompt.messages[-1].text}")
    agent = Agent(
        model=model,
        memory=Memory(storage=storage, last_messages=100),
        input_processors=[RegexFilter(presets=["pii"], strategy="redact")] if redacts else [],
    )
    shown: list[Message] = []

    async def send(text: str, id: str) -> None:
        shown.append(Message.user(text, id=id))
        answer = await agent.generate(shown, thread="t")
        shown.append(Message.assistant(answer.text, id=f"answer-{id}-{len(model.requests)}"))

    async def stored() -> list[str]:
        return [row.text for row in await agent.memory.messages.list(thread="t")]  # pyright: ignore

    await send("one", "q1")
    await send("two, ada@example.com", "q2")
    del shown[2:]
    await send("TWO, ada@example.com", "q2")
    mail = "[EMAIL]" if redacts else "ada@example.com"
    assert await stored() == ["one", "answer to one", f"TWO, {mail}", f"answer to TWO, {mail}"]
    await send("three", "q3")
    assert (await stored())[2:] == [f"TWO, {mail}", f"answer to TWO, {mail}", "three", "answer to three"]
    del shown[4:]
    await send("THREE", "q3")
    del shown[4:]
    await send("four", "q3")
    assert (await stored())[2:] == [f"TWO, {mail}", f"answer to TWO, {mail}", "four", "answer to four"]


async def test_rewind_and_switch(client: Client) -> None:
    threads = client.memory.threads
    before = await client.memory.messages.list(thread="t")
    assert await threads.rewind("t", to=before[-1].id) is None
    branch = await threads.rewind("t", to=before[3].id)
    assert branch is not None
    assert (branch.after, list(branch.messages)) == (before[3].id, before[4:])
    assert await client.memory.messages.list(thread="t") == before[:4]
    await client.agent.generate("other-3", thread="t")
    assert client.prompt[-3:] == ["question-2", "answer-2", "other-3"] or client.prompt[-1] == "other-3"
    assert [one.id for one in await threads.branches("t")] == [branch.id]
    await threads.switch_branch("t", branch.id)
    assert [replace(row, sent=None) for row in await client.memory.messages.list(thread="t")] == [
        replace(row, sent=None) for row in before
    ]
    (other,) = await threads.branches("t")
    assert [row.text.split()[0] for row in other.messages] == ["other-3", "answer-6"]
    await client.send([*client.copy, user("question-7")])
    assert client.prompt[-1] == "question-7"
    assert max(Counter(client.prompt).values()) == 1
    for branch_id in (branch.id, "branch_99", "x"):
        with pytest.raises(NotFoundError, match=branch_id):
            await threads.switch_branch("t", branch_id)
    with pytest.raises(NotFoundError, match=other.messages[0].id):
        await threads.rewind("t", to=other.messages[0].id)
    with pytest.raises(NotFoundError, match="no thread 'u'"):
        await threads.branches("u")
    with pytest.raises(InputError, match="belong"):
        await threads.rewind("t", to=before[0].id, resource="bob")


async def test_rewind_returns_the_messages_that_it_supersedes_although_another_branch_is_newer(
    storage: Storage,
) -> None:
    memory = Memory(storage=storage)
    for text in ("q1", "q2", "q3"):
        await memory.messages.save(Message.user(text, id=text), thread="t")
    branch = await memory.threads.rewind("t", to="q1")
    assert branch is not None
    await memory.messages.save(Message.user("newer"), thread="t")
    await memory.threads.switch_branch("t", branch.id)
    again = await memory.threads.rewind("t", to="q1")
    assert again is not None
    assert [row.id for row in again.messages] == ["q2", "q3"]


async def test_no_branch_changes_under_a_live_run(client: Client) -> None:
    rows = await client.memory.messages.list(thread="t")
    run = await client.memory.storage.begin_run("live", await client.memory.threads.get("t"))
    hasty = Memory(storage=client.memory.storage, thread_wait=0)
    with pytest.raises(ThreadBusyError, match="'live'"):
        await hasty.threads.rewind("t", to=rows[0].id)
    await client.memory.storage.finish_run(run, "discarded")
    await hasty.threads.rewind("t", to=rows[0].id)
    assert await client.rows() == SAID[:1]


async def test_a_diary_entry_across_the_cut_is_dropped_and_its_messages_are_raw_again(storage: Storage) -> None:
    client = Client(storage, observing=True)
    await client.talk()
    log = await client.memory.diary.get(thread="t")
    assert log.entries
    rows = await client.memory.messages.list(thread="t")
    last = max(source.last_seq for entry in log.entries for source in entry.sources)
    assert last > 1
    cut = next(row for row in reversed(rows) if (row.seq or 0) < last)  # within the last entry
    branch = await client.memory.threads.rewind("t", to=cut.id)
    assert branch is not None
    left = await client.memory.diary.get(thread="t")
    assert all(source.last_seq <= (cut.seq or 0) for entry in left.entries for source in entry.sources)
    assert len(left.entries) < len(log.entries)
    assert not any(
        source.last_seq > (cut.seq or 0)
        for old in await client.memory.diary.history(thread="t")
        for entry in old.entries
        for source in entry.sources
    )
    await client.memory.threads.switch_branch("t", branch.id)
    await client.agent.generate("question-6", thread="t")
    await client.memory.settled()
    assert (await client.memory.diary.get(thread="t")).entries


async def test_superseded_messages_are_found_nowhere(storage: Storage) -> None:
    memory = Memory(storage=storage, embedder=TopicEmbedder(), vector=InMemoryVectorStore())
    agent = Agent(model=numbered_answers(), memory=memory)
    for text in ("we saw rome", "we ate pizza"):
        await agent.generate(text, thread="t", resource="ada")
    await memory.settled()
    rows = await memory.messages.list(thread="t")

    async def found(text: str) -> tuple[int, int, bool]:
        hits = (await memory.messages.search(text, thread="t")).items
        near = (await memory.recall(text, thread="t")).items
        return len(hits), sum(text in hit.message.text for hit in near), await has_vector(memory, text)

    assert await found("pizza") == (1, 1, True)
    branch = await memory.threads.rewind("t", to=rows[1].id)
    await memory.settled()
    assert branch is not None
    assert await found("pizza") == (0, 0, False)
    assert await found("rome") == (1, 1, True)
    await agent.generate("we dug a garden", thread="t", resource="ada")
    await memory.threads.switch_branch("t", branch.id)
    await memory.settled()
    assert await found("pizza") == (1, 1, True)
    assert await found("garden") == (0, 0, False)


async def has_vector(memory: Memory, text: str) -> bool:
    assert memory.semantic is not None
    near = await memory.semantic.near(text, resource_id="ada", limit=10, threshold=0.01)
    return bool(near)


async def test_forget_reaches_every_branch(client: Client) -> None:
    threads, rows = client.memory.threads, await client.memory.messages.list(thread="t")
    branch = await threads.rewind("t", to=rows[3].id)
    assert branch is not None
    receipt = await client.memory.forget(message_ids=[rows[2].id, rows[5].id], thread="t")
    assert set(receipt.message_ids) == {rows[2].id, rows[5].id}
    await threads.switch_branch("t", branch.id)
    left = [text for place, text in enumerate(SAID) if place not in (2, 5)]
    assert await client.rows() == left
    await client.send([*client.copy, user("question-6")])  # with the forgotten messages
    assert await client.rows() == [*left, "question-6", "answer-6"]
    await threads.rewind("t", to=rows[0].id)
    receipt = await client.memory.forget(thread="t")
    assert {row.id for row in rows[6:]} <= set(receipt.message_ids)
    assert await client.memory.storage.list_superseded("t") == []


async def test_the_message_to_go_back_to_is_forgotten_at_that_moment() -> None:
    class Meddled(InMemoryStorage):
        forgotten = ""

        async def set_branch(self, *args: Any, **options: Any) -> list[str]:
            if forgotten := self.forgotten:
                self.forgotten = ""
                await client.memory.forget(message_ids=[forgotten], thread="t")
            return await super().set_branch(*args, **options)

    client = Client(storage := Meddled(), observing=False)
    await client.talk()
    storage.forgotten = (await client.memory.messages.list(thread="t"))[3].id
    await client.send([*client.copy[:4], user("edited")])
    assert await client.rows() == [*SAID[:3], "edited", "answer-6"]


async def test_a_call_that_fails_at_once_leaves_the_branch_as_it_was(client: Client) -> None:
    failing = Agent(model=ScriptedModel(RuntimeError("down")), memory=client.memory)
    with pytest.raises(RuntimeError):
        await failing.generate(client.copy[:-1], thread="t")
    assert await client.rows() == SAID
    await client.send(client.copy[:-1])
    assert await client.rows() == [*SAID[:-1], "answer-6"]


async def test_a_clone_and_an_export_have_the_active_branch(client: Client) -> None:
    await client.send([*client.copy[:2], user("edited-2")])
    copy = await client.memory.threads.clone("t")
    texts = [row.text.split()[0] for row in await client.memory.messages.list(thread=copy.id)]
    assert texts == await client.rows()
    assert await client.memory.threads.branches(copy.id) == []
    lines = [line async for line in client.memory.threads.export("t")]
    assert '"messages":4' in lines[-1]
    assert '"left_out":8' in lines[-1]
    other = Memory(storage=InMemoryStorage())
    assert (await other.threads.import_all(lines)).messages == 4
