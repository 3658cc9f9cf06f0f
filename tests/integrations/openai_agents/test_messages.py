"""The items of OpenAI's Agents SDK become messages of the library, and come back."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from diarist.integrations.openai_agents.messages import select, to_neutral, to_theirs
from diarist.messages import FilePart, ReasoningPart, TextPart, ToolPart

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=8)
JSON = st.dictionaries(WORDS, st.integers(-(2**63), 2**64 - 1) | WORDS | st.lists(WORDS, max_size=2), max_size=2)
FILE = st.just({"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto"})
TEXT = st.builds(lambda text: {"type": "input_text", "text": text}, WORDS)


@st.composite
def turns(draw: st.DrawFn) -> list[Any]:
    """Turns of a user, calls with their results in any order, and an answer."""
    out: list[Any] = []
    for turn in range(draw(st.integers(1, 3))):
        content: Any = draw(WORDS | st.lists(TEXT | FILE, min_size=2, max_size=3))
        out.append({"type": "message", "role": "user", "content": content})
        for step in range(draw(st.integers(0, 2))):
            ids = [f"call-{turn}-{step}-{number}" for number in range(draw(st.integers(1, 3)))]
            for call_id in ids:
                arguments = json.dumps(draw(JSON))
                call = {"type": "function_call", "call_id": call_id, "name": "look", "arguments": arguments}
                out.append({**call, "id": f"fc-{call_id}"})
            for call_id in draw(st.permutations(ids)):
                out.append({"type": "function_call_output", "call_id": call_id, "output": draw(WORDS)})
        answer = [{"type": "output_text", "text": draw(WORDS), "annotations": []}]
        out.append({"type": "message", "id": f"msg-{turn}", "role": "assistant", "content": answer})
    return out


def essence(items: list[Any]) -> list[Any]:
    """What a model reads of items; results in the order of their ids."""
    out: list[Any] = []
    results: list[Any] = []
    for item in items:
        if item["type"] == "function_call_output":
            results.append((item["call_id"], item["output"]))
            continue
        out, results = [*out, *sorted(results)], []
        if item["type"] == "function_call":
            out.append((item["call_id"], item["name"], json.loads(item["arguments"])))
        else:
            content = item["content"]
            said = content[0]["text"] if item["role"] == "assistant" and isinstance(content, list) else content
            out.append((item["role"], said))
    return [*out, *sorted(results)]


@given(turns())
def test_items_come_back(items: list[Any]) -> None:
    history = to_neutral(items)
    assert history.unknown == []
    assert [entry.own_id for entry in history.entries] == [m.role == "assistant" for m in history.messages]
    assert essence(list(to_theirs(history.messages))) == essence(items)


@given(turns(), st.data())
def test_a_call_and_its_result_are_sent_or_left_out_together(items: list[Any], data: st.DataObject) -> None:
    history = to_neutral(items)
    keep = data.draw(st.sets(st.sampled_from([message.id for message in history.messages])))
    sent: list[Any] = select(items, history, keep)
    assert all(any(one is item for item in items) for one in sent)  # the same objects, nothing rewritten
    called = {item["call_id"] for item in sent if item["type"] == "function_call"}
    assert called == {item["call_id"] for item in sent if item["type"] == "function_call_output"}
    assert select(items, history, {message.id for message in history.messages}) == items


def test_a_note_comes_before_the_users_words_and_changes_no_given_item() -> None:
    asked: Any = {"role": "user", "content": "Where?"}
    history = to_neutral([asked])
    [user] = history.messages
    sent: list[Any] = select([asked], history, {user.id}, {user.id: "Today is Monday."})
    texts = [{"type": "input_text", "text": text} for text in ("Today is Monday.", "Where?")]
    assert sent == [{"role": "user", "content": texts}]
    assert asked == {"role": "user", "content": "Where?"}


def test_the_items_of_one_response_are_one_message() -> None:
    summary = [{"type": "summary_text", "text": "Hm."}]
    items: list[Any] = [
        {"role": "user", "content": [{"type": "input_file", "file_url": "https://example.com/a.pdf"}]},
        {"type": "reasoning", "id": "rs", "summary": summary, "encrypted_content": "e"},
        {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"type": "function_call", "id": "fc", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call", "id": "fd", "call_id": "d", "name": "look", "arguments": "{"},
        {"type": "function_call_output", "call_id": "d", "output": [{"type": "input_text", "text": "bad"}]},
        {"type": "function_call_output", "call_id": "c", "output": "good"},
    ]
    history = to_neutral(items)
    user, answer = history.entries
    assert user.message.parts == [FilePart(media_type="application/pdf", url="https://example.com/a.pdf")]
    assert (answer.message.id, answer.own_id, sorted(answer.places)) == ("ws", True, [1, 2, 3, 4, 5, 6])
    thought, search, good, bad = answer.message.parts
    assert thought == ReasoningPart(text="Hm.")
    assert isinstance(search, ToolPart)
    assert (search.name, search.state, search.provider_executed) == ("web_search", "result", True)
    assert good == ToolPart(call_id="c", name="look", args={}, state="result", result="good")
    assert bad == ToolPart(call_id="d", name="look", args={"arguments": "{"}, state="result", result="bad")


def test_placeholder_ids_of_other_models_are_no_ids() -> None:
    content = [{"type": "output_text", "text": "Hi", "annotations": []}]
    item: Any = {"type": "message", "id": "__fake_id__", "role": "assistant", "content": content}
    [entry] = to_neutral([item]).entries
    assert not entry.own_id
    assert entry.message.parts == [TextPart(text="Hi")]


def test_system_messages_and_unknown_types_are_always_sent() -> None:
    items: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"type": "item_reference", "id": "x"},
        {"type": "compaction", "encrypted_content": "e"},
        {"role": "user", "content": "Hi"},
    ]
    history = to_neutral(items)
    assert select(items, history, set()) == items[:3]
    assert history.unknown == ["item_reference", "compaction"]


def test_unknown_items_of_a_response_are_sent_or_left_out_with_it() -> None:
    items: list[Any] = [
        {"role": "user", "content": "Hi"},
        {"type": "tool_search_call", "id": "ts", "call_id": "t", "arguments": {}, "status": "completed"},
        {"type": "program", "id": "p", "call_id": "q", "code": "1", "fingerprint": "f"},
        {"type": "tool_search_output", "call_id": "t", "tools": []},
        {"type": "program_output", "call_id": "q", "result": "1", "status": "completed"},
    ]
    history = to_neutral(items)
    user, answer = history.messages
    assert select(items, history, {user.id}) == items[:1]
    assert select(items, history, {answer.id}) == items[1:]
    assert history.unknown == ["program", "tool_search_output", "program_output"]


def test_a_result_without_its_call_is_a_message_of_its_own() -> None:
    [message] = to_neutral([{"type": "function_call_output", "call_id": "c", "output": "18 °C"}]).messages
    assert message.role == "tool"
    assert message.parts == [ToolPart(call_id="c", name="", args={}, state="result", result="18 °C")]
