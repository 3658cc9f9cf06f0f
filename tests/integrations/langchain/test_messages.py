"""LangChain's messages become the library's, and come back."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    convert_to_messages,
)

from diarist.integrations.history import History
from diarist.integrations.langchain.messages import (
    arrange,
    outline,
    to_neutral,
    to_theirs,
    with_texts,
    without_half_pairs,
)
from diarist.messages import FilePart, Message, ReasoningPart, TextPart, ToolPart

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=8)
JSON = st.dictionaries(WORDS, st.integers(-(2**63), 2**64 - 1) | WORDS | st.lists(WORDS, max_size=2), max_size=2)
FILE = st.builds(lambda data: {"type": "image", "mime_type": "image/png", "base64": data}, st.just("aGk="))
TEXT = st.builds(lambda text: {"type": "text", "text": text}, WORDS)


@st.composite
def turns(draw: st.DrawFn) -> list[BaseMessage]:
    """Turns of a user, calls with their results in any order, and an answer."""
    out: list[BaseMessage] = []
    for turn in range(draw(st.integers(1, 3))):
        content: Any = draw(WORDS | st.lists(TEXT | FILE, min_size=2, max_size=3))
        out.append(HumanMessage(content, id=f"user-{turn}"))
        for step in range(draw(st.integers(0, 2))):
            ids = [f"call-{turn}-{step}-{number}" for number in range(draw(st.integers(1, 3)))]
            calls = [{"type": "tool_call", "id": i, "name": "look", "args": draw(JSON)} for i in ids]
            out.append(AIMessage(draw(WORDS | st.just("")), tool_calls=calls, id=f"step-{turn}-{step}"))
            for call_id in draw(st.permutations(ids)):
                status: Any = draw(st.sampled_from(["success", "error"]))
                out.append(ToolMessage(draw(WORDS), tool_call_id=call_id, name="look", status=status))
        out.append(AIMessage(draw(WORDS), id=f"answer-{turn}"))
    return out


def essence(messages: list[BaseMessage]) -> list[Any]:
    """What a model reads of messages; the results after one answer in the order of their ids."""
    out: list[Any] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            out[-1][-1].append((message.tool_call_id, message.content, message.name, message.status))
            out[-1][-1].sort()
        else:
            calls = message.tool_calls if isinstance(message, AIMessage) else []
            out.append((message.type, message.id, message.content, calls, []))
    return out


@given(turns())
def test_messages_come_back(messages: list[BaseMessage]) -> None:
    history = to_neutral(messages)
    assert [entry.own_id for entry in history.entries] == [True] * len(history.entries)
    assert history.unknown == []
    back = to_theirs(history.messages)
    assert essence(list(convert_to_messages(back))) == essence(messages)


def select(
    messages: list[Any], history: History[int], keep: set[str], notes: dict[str, str] | None = None
) -> list[Any]:
    """Return the messages with these ids, and those without an entry."""
    places = {entry.message.id: entry.places for entry in history.entries}
    read = {place for each in places.values() for place in each}
    always = [place for place in range(len(messages)) if place not in read]
    return arrange(messages, places, order=[each for each in places if each in keep], notes=notes, always=always)


@given(turns(), st.data())
def test_a_call_and_its_result_are_sent_or_left_out_together(messages: Any, data: st.DataObject) -> None:
    history = to_neutral(messages)
    keep = data.draw(st.sets(st.sampled_from([message.id for message in history.messages])))
    sent = select(messages, history, keep)
    assert all(any(one is message for message in messages) for one in sent)  # the same objects, nothing rewritten
    called = {call["id"] for message in sent if isinstance(message, AIMessage) for call in message.tool_calls}
    assert called == {message.tool_call_id for message in sent if isinstance(message, ToolMessage)}
    assert select(messages, history, {message.id for message in history.messages}) == messages


def test_a_note_comes_before_the_users_words_and_changes_no_given_message() -> None:
    asked = HumanMessage("Where?", id="a")
    history = to_neutral([asked])
    [sent] = select([asked], history, {"a"}, {"a": "Today is Monday."})
    assert sent.content == [{"type": "text", "text": "Today is Monday."}, {"type": "text", "text": "Where?"}]
    assert (sent.id, asked.content) == ("a", "Where?")


def test_parts_of_all_kinds_are_read() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    openai = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "So."}], "encrypted_content": "e"}
    call = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    answer = AIMessage(
        [thought, openai, {"type": "text", "text": "Yes."}, call],  # type: ignore[list-item]
        tool_calls=[{"id": "c", "name": "look", "args": {"at": 1}}],
        invalid_tool_calls=[{"id": "d", "name": "look", "args": "{", "error": "not JSON"}],
    )
    files: Any = [
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,aGk=", "filename": "a.pdf"}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="}},
        {"type": "media", "mime_type": "video/mp4", "data": "aGk="},
        {"type": "file", "file_id": "f"},
    ]
    history = to_neutral([HumanMessage(files), answer])
    user, assistant = history.messages
    assert user.parts == [
        FilePart(media_type="image/png", url="https://example.com/a.png"),
        FilePart(media_type="audio/wav", data=b"hi"),
        FilePart(media_type="application/pdf", data=b"hi", name="a.pdf"),
        FilePart(media_type="application/pdf", data=b"hi"),
        FilePart(media_type="video/mp4", data=b"hi"),
        TextPart(text="[file]"),
    ]
    assert assistant.parts == [
        ReasoningPart(text="Hm."),
        ReasoningPart(text="So."),
        TextPart(text="Yes."),
        ToolPart(call_id="c", name="look", args={"at": 1}),
        ToolPart(call_id="d", name="look", args={"arguments": "{"}),
    ]
    assert history.unknown == ["file"]


def test_system_messages_and_unknown_types_are_always_sent() -> None:
    messages: Any = [
        SystemMessage("Be brief."),
        ChatMessage("Hi", role="narrator"),
        HumanMessage("Hi", id="a"),
        RemoveMessage(id="b"),
    ]
    history = to_neutral(messages)
    assert select(messages, history, set()) == [messages[0], messages[1], messages[3]]
    assert history.unknown == ["chat", "remove"]


def test_a_result_without_its_call_is_a_message_of_its_own() -> None:
    history = to_neutral([ToolMessage("18 °C", tool_call_id="c", name="weather", id="t")])
    [message] = history.messages
    assert message.role == "tool"
    assert message.parts == [ToolPart(call_id="c", name="weather", args={}, state="result", result="18 °C")]


def test_ids_that_do_not_last_are_not_taken_over() -> None:
    [entry] = to_neutral([HumanMessage("Hi", id="a")], ids=False).entries
    assert not entry.own_id
    assert entry.message.id != "a"
    twice = to_neutral([HumanMessage("Hi", id="a"), HumanMessage("Hi", id="a")])
    assert [entry.own_id for entry in twice.entries] == [True, False]


def test_stored_messages_are_sent_among_the_given_ones() -> None:
    messages: Any = [
        ChatMessage("Hi", role="narrator"),
        HumanMessage("Oslo?", id="a"),
        ChatMessage("Ho", role="narrator"),
    ]
    stored = Message.user("Rome?")
    sent = arrange(messages, {"x": [1]}, order=[stored.id, "x"], brought=[stored], always=[0, 2])
    assert [message.text for message in sent] == ["Rome?", "Hi", "Oslo?", "Ho"]
    assert sent[2] is messages[1]


@given(turns(), st.data())
def test_a_history_can_be_read_in_two_parts(messages: Any, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(messages)))
    whole, parts = to_neutral(messages), to_neutral(messages, after=to_neutral(messages[:cut]), start=cut)
    assert [(entry.message.parts, entry.places) for entry in parts.entries] == [
        (entry.message.parts, entry.places) for entry in whole.entries
    ]


@given(turns())
def test_an_outline_has_the_places_of_a_history(messages: Any) -> None:
    history = to_neutral(messages)
    assert outline(messages) == {entry.message.id: entry.places for entry in history.entries}
    asked = AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "open"}], id="asked")
    assert outline([*messages, asked]) == outline(messages)


def test_half_of_a_call_is_known_by_its_place() -> None:
    """Some servers use an id of a call again."""

    def answer(*ids: str) -> AIMessage:
        return AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": id} for id in ids])

    def result(id: str) -> ToolMessage:
        return ToolMessage("found", tool_call_id=id)

    whole = [HumanMessage("Go!"), answer("a", "b"), result("b"), result("a")]
    halves = [answer("a"), HumanMessage("Wait."), answer("c", "b"), result("c")]
    late = [answer("d"), HumanMessage("And?"), result("d")]
    sent = without_half_pairs([result("c"), *whole, *halves, *late])
    assert sent == [*whole, halves[1], late[0], late[2], late[1]]


def test_texts_are_appended_to_the_system_message() -> None:
    block = {"type": "text", "text": "Be kind."}
    assert with_texts(None, []) is None
    assert with_texts(None, ["One.", "Two."]) == SystemMessage("One.\n\nTwo.")
    assert with_texts(SystemMessage("Be kind.", id="s"), ["One."]) == SystemMessage("Be kind.\n\nOne.", id="s")
    blocks = with_texts(SystemMessage([block]), ["One."])
    assert blocks is not None
    assert blocks.content == [block, {"type": "text", "text": "One."}]
