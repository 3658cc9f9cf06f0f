"""Pydantic AI's messages become the library's, and come back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import (
    Agent,
    BinaryContent,
    CachePoint,
    CompactionPart,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.test import TestModel

from diarist import messages as ours
from diarist.integrations.pydantic_ai.messages import select, to_neutral, to_theirs

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=8)
JSON = st.dictionaries(WORDS, st.integers(-(2**63), 2**64 - 1) | WORDS | st.lists(WORDS, max_size=2), max_size=2)
FILES = st.sampled_from([ImageUrl("https://example.com/a.png"), BinaryContent(b"hi", media_type="audio/wav")])


@st.composite
def turns(draw: st.DrawFn) -> list[ModelMessage]:
    """Turns of a user, calls with their results in any order, and an answer."""
    out: list[ModelMessage] = []
    for turn in range(draw(st.integers(1, 3))):
        content: Any = draw(WORDS | st.lists(WORDS | FILES, min_size=2, max_size=3))
        out.append(ModelRequest([UserPromptPart(content, timestamp=NOW.replace(minute=turn))], run_id=f"run-{turn}"))
        for step in range(draw(st.integers(0, 2))):
            ids = [f"call-{turn}-{step}-{number}" for number in range(draw(st.integers(1, 3)))]
            thought = ThinkingPart(draw(WORDS), signature="s", provider_name="openai", id="rs")
            calls = [ToolCallPart("look", draw(JSON), i, id=f"fc-{i}", provider_name="openai") for i in ids]
            moment = datetime(2026, 5, 4, 13, step, tzinfo=UTC)
            answer = ModelResponse([thought, *calls], run_id=f"run-{turn}", timestamp=moment, provider_name="openai")
            results = [
                ToolReturnPart("look", draw(WORDS), i, outcome=draw(st.sampled_from(["success", "failed"])))
                for i in draw(st.permutations(ids))
            ]
            out += [answer, ModelRequest(results, run_id=f"run-{turn}")]
        text = TextPart(draw(WORDS))
        out.append(ModelResponse([text], run_id=f"run-{turn}", timestamp=NOW.replace(hour=14)))
    return out


def essence(messages: list[ModelMessage]) -> list[Any]:
    """What a model reads of messages; the results in one request in the order of their ids."""
    out: list[Any] = []
    for message in messages:
        results = [part for part in message.parts if isinstance(part, ToolReturnPart)]
        shown = [(part.tool_call_id, part.tool_name, part.content, part.outcome) for part in results]
        asked = [part.content for part in message.parts if isinstance(part, UserPromptPart)]
        answered = message.parts if isinstance(message, ModelResponse) else []
        out.append((message.kind, sorted(shown), asked, answered))
    return out


@given(turns())
def test_messages_come_back(messages: list[ModelMessage]) -> None:
    history = to_neutral(messages)
    assert [entry.own_id for entry in history.entries] == [True] * len(history.entries)
    assert history.unknown == []
    assert [entry.message.id for entry in to_neutral(messages).entries] == [m.id for m in history.messages]
    assert essence(to_theirs(history.messages, system="openai")) == essence(messages)


@given(turns(), st.data())
def test_a_call_and_its_result_are_sent_or_left_out_together(messages: Any, data: st.DataObject) -> None:
    history = to_neutral(messages)
    keep = data.draw(st.sets(st.sampled_from([message.id for message in history.messages])))
    sent = select(messages, history, keep)
    parts = [part for message in sent for part in message.parts]
    called = {part.tool_call_id for part in parts if isinstance(part, ToolCallPart)}
    assert called == {part.tool_call_id for part in parts if isinstance(part, ToolReturnPart)}
    whole = select(messages, history, {message.id for message in history.messages})
    assert all(one is other for one, other in zip(whole, messages, strict=True))


def test_a_note_comes_before_the_users_words_and_changes_no_given_message() -> None:
    asked = ModelRequest([SystemPromptPart("Be brief."), UserPromptPart("Where?")], run_id="r", instructions="Hurry.")
    history = to_neutral([asked])
    [user] = history.messages
    [sent] = select([asked], history, {user.id}, {user.id: "Today is Monday."})
    assert isinstance(sent, ModelRequest)
    assert sent.instructions == "Hurry."
    assert sent.parts[1].content == ["Today is Monday.", "Where?"]
    assert asked.parts[1].content == "Where?"
    [rest] = select([asked], history, set())
    assert rest.parts == [asked.parts[0]]


def test_parts_of_all_kinds_are_read() -> None:
    asked = UserPromptPart(["Look:", CachePoint(), ImageUrl("https://example.com/a")])
    image = BinaryContent(b"hi", media_type="image/png")
    answer = ModelResponse(
        [
            ThinkingPart("Hm.", signature="s", provider_name="anthropic"),
            NativeToolCallPart("web_search", {"query": "x"}, "n", provider_name="openai", id="ws"),
            NativeToolReturnPart("web_search", [{"url": "u"}], "n", provider_name="openai"),
            TextPart("Yes.", id="msg", provider_name="openai"),
            FilePart(image),
            ToolCallPart("look", "{", "c"),
            CompactionPart("Before: much."),
        ]
    )
    history = to_neutral([ModelRequest([asked]), answer])
    user, assistant = history.messages
    assert user.parts == [
        ours.TextPart(text="Look:"),
        ours.FilePart(media_type="image/*", url="https://example.com/a"),
    ]
    assert assistant.parts == [
        ours.ReasoningPart(text="Hm.", signature="s", provider="anthropic"),
        ours.ToolPart(
            call_id="n",
            name="web_search",
            args={"query": "x"},
            state="result",
            result=[{"url": "u"}],
            provider_executed=True,
            provider_data={"provider": "openai", "id": "ws"},
        ),
        ours.TextPart(text="Yes.", provider_data={"provider": "openai", "id": "msg"}),
        ours.FilePart(media_type="image/png", data=b"hi"),
        ours.ToolPart(call_id="c", name="look", args={"arguments": "{"}),
    ]
    assert history.unknown == ["compaction"]
    assert [entry.own_id for entry in history.entries] == [True, False]


async def test_the_messages_of_a_real_run_have_ids_that_last() -> None:
    agent = Agent(TestModel())

    @agent.tool_plain
    def look() -> dict[str, int]:
        return {"found": 1}

    first = await agent.run("Look.")
    second = await agent.run("Again.", message_history=first.all_messages())
    before, after = to_neutral(first.all_messages()), to_neutral(second.all_messages())
    assert all(entry.own_id for entry in after.entries)
    known = [message.id for message in before.messages]
    assert [message.id for message in after.messages][: len(known)] == known
    assert [message.role for message in before.messages] == ["user", "assistant", "assistant"]
    assert before.messages[1].tool_parts[0].result == {"found": 1}
