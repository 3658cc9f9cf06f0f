"""Messages in the forms of OpenAI, Anthropic and the AI SDK."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from diarist import Message
from diarist.convert import to_anthropic, to_openai, to_ui
from diarist.exceptions import InputError
from diarist.message_list import to_messages
from diarist.messages import DataPart, FilePart, ReasoningPart, SentBlock, SourcePart, TextPart, ToolPart

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


def turn() -> list[Message]:
    """A turn of two steps, the first with two calls."""
    calls = [
        ToolPart(call_id="c1", name="look", args={"at": "door"}, state="result", result={"open": True}),
        ToolPart(call_id="c2", name="push", args={}, state="error", result="stuck"),
    ]
    thought = ReasoningPart(text="Hm.", signature="sig", provider="anthropic")
    return [
        Message.user("Open it.", id="u", created_at=NOON, sent=SentBlock(text="<memory-note>2 March</memory-note>")),
        Message(
            id="a1",
            role="assistant",
            run_id="r",
            created_at=NOON,
            parts=[thought, TextPart(text="Let me see."), *calls],
        ),
        Message.assistant("It is stuck.", id="a2", run_id="r", created_at=NOON),
    ]


def test_openai() -> None:
    assert to_openai(turn()) == [
        {"role": "user", "content": "Open it."},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":"door"}'}},
                {"id": "c2", "type": "function", "function": {"name": "push", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": '{"open":true}'},
        {"role": "tool", "tool_call_id": "c2", "content": "stuck"},
        {"role": "assistant", "content": "It is stuck."},
    ]


def test_what_openai_gets_can_be_read_again() -> None:
    again = to_messages(to_openai(turn()))
    assert to_openai(again) == to_openai(turn())


def test_anthropic() -> None:
    assert to_anthropic([Message.system("Be brief."), *turn(), Message.user("Push!", created_at=NOON)]) == {
        "system": "Be brief.",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Open it."}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
                    {"type": "text", "text": "Let me see."},
                    {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "door"}},
                    {"type": "tool_use", "id": "c2", "name": "push", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": '{"open":true}'},
                    {"type": "tool_result", "tool_use_id": "c2", "content": "stuck", "is_error": True},
                ],
            },
            {"role": "assistant", "content": [{"type": "text", "text": "It is stuck."}]},
            {"role": "user", "content": [{"type": "text", "text": "Push!"}]},
        ],
    }


def test_anthropic_gets_turns_that_alternate_and_only_its_own_thinking() -> None:
    foreign = ReasoningPart(text="Hm.", signature="sig", provider="openai")
    messages = [
        Message.user("One."),
        Message.user("Two."),
        Message(role="assistant", parts=[foreign, TextPart(text="3")]),
    ]
    assert [(turn["role"], len(turn["content"])) for turn in to_anthropic(messages)["messages"]] == [
        ("user", 2),
        ("assistant", 1),
    ]


def test_ui() -> None:
    question, answer = to_ui(turn())
    assert question == {
        "id": "u",
        "role": "user",
        "parts": [{"type": "text", "text": "Open it.", "state": "done"}],
        "metadata": {"createdAt": "2026-03-02T12:00:00+00:00"},
    }
    assert answer["id"] == "a1"
    assert answer["parts"] == [
        {"type": "step-start"},
        {"type": "reasoning", "text": "Hm.", "state": "done"},
        {"type": "text", "text": "Let me see.", "state": "done"},
        {
            "type": "tool-look",
            "toolCallId": "c1",
            "input": {"at": "door"},
            "state": "output-available",
            "output": {"open": True},
        },
        {"type": "tool-push", "toolCallId": "c2", "input": {}, "state": "output-error", "errorText": "stuck"},
        {"type": "step-start"},
        {"type": "text", "text": "It is stuck.", "state": "done"},
    ]


def test_ui_has_files_sources_and_data() -> None:
    parts = [
        FilePart(media_type="image/png", data=b"PNG", name="door.png"),
        FilePart(media_type="image/png", url="https://example.com/a.png"),
        SourcePart(url="https://example.com", title="Here"),
        DataPart(type="data-place", data={"x": 1}, id="d"),
        ToolPart(call_id="c", name="ask", args={}),
    ]
    (message,) = to_ui([Message(role="assistant", parts=parts, created_at=None)])
    assert message["parts"][1:] == [
        {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,UE5H", "filename": "door.png"},
        {"type": "file", "mediaType": "image/png", "url": "https://example.com/a.png"},
        {"type": "source-url", "sourceId": "source-2", "url": "https://example.com", "title": "Here"},
        {"type": "data-place", "data": {"x": 1}, "id": "d"},
        {"type": "tool-ask", "toolCallId": "c", "input": {}, "state": "input-available"},
    ]
    json.dumps(message)


def test_ui_has_metadata_without_the_librarys_own() -> None:
    own = {"mood": "calm", "diarist_processors": [{"id": "guard", "state": "secret"}], "diarist_cut": True}
    (message,) = to_ui([Message.assistant("Once", created_at=None, metadata=own)])
    assert message["metadata"] == {"mood": "calm", "cut": True}


def test_results_that_a_client_sent_join_their_calls() -> None:
    call = Message(role="assistant", parts=[ToolPart(call_id="c", name="ask", args={})])
    result = Message(role="tool", parts=[ToolPart(call_id="c", name="ask", args={}, state="result", result="yes")])
    late = Message(role="tool", parts=[ToolPart(call_id="x", name="ask", args={}, state="result", result="late")])
    (message,) = to_ui([call, result, late])
    assert message["parts"][1]["output"] == "yes"
    assert [said["role"] for said in to_openai([call, result])] == ["assistant", "tool"]


def test_files_for_the_providers() -> None:
    image = Message(role="user", parts=[FilePart(media_type="image/png", data=b"PNG")])
    pdf = Message(role="user", parts=[FilePart(media_type="application/pdf", url="https://example.com/a.pdf")])
    film = Message(role="user", parts=[FilePart(media_type="video/mp4", data=b"MP4")])
    assert to_openai([image])[0]["content"][0]["image_url"] == {"url": "data:image/png;base64,UE5H"}
    assert [block["type"] for block in to_anthropic([image, pdf])["messages"][0]["content"]] == ["image", "document"]
    for convert in (to_openai, to_anthropic):
        with pytest.raises(InputError, match="video/mp4"):
            convert([film])


def test_openai_passes_the_bytes_of_other_files_on() -> None:
    archive = Message(role="user", parts=[FilePart(media_type="application/zip", data=b"PK")])
    assert to_openai([archive])[0]["content"][0]["file"]["filename"] == "file.zip"
    with pytest.raises(InputError, match="application/zip as an address"):
        to_openai(Message(role="user", parts=[FilePart(media_type="application/zip", url="https://example.com/a.zip")]))


@pytest.mark.parametrize("given", ["Hi!", Message.user("Hi!"), {"role": "user", "content": "Hi!"}])
def test_they_take_what_an_agent_takes(given: str | Message | dict[str, str]) -> None:
    listed = [given] if not isinstance(given, str) else given
    for said in (given, listed):
        assert to_openai(said) == [{"role": "user", "content": "Hi!"}]
        assert to_anthropic(said) == {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi!"}]}]}
        assert to_ui(said)[0]["parts"] == [{"type": "text", "text": "Hi!", "state": "done"}]


def test_an_empty_list_and_wrong_input() -> None:
    assert (to_openai([]), to_anthropic([]), to_ui([])) == ([], {"messages": []}, [])
    wrong: list[object] = [None, [1], [{"role": "usr", "content": "Hi!"}], {}]
    for convert in (to_openai, to_anthropic, to_ui):
        for given in wrong:
            with pytest.raises(InputError):
                convert(given)  # type: ignore[arg-type]
