"""Exports, sessions and histories of other programs become messages: each format by a small file made by hand."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from diarist.exceptions import InputError
from diarist.integrations.conversations import Conversation, read_conversation, read_conversations, thread_id_of
from diarist.messages import FilePart, ReasoningPart, TextPart, ToolPart


@pytest.fixture
def read(tmp_path: Path):
    def inner(content: Any, **options: Any) -> Conversation:
        return read_conversation(write(tmp_path, content), **options)

    return inner


def write(folder: Path, content: Any) -> Path:
    path = folder / "file.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def lines(*values: Any) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def told(chat: Conversation) -> list[tuple[str, str]]:
    """Role and content of each message, tool calls in the form ``name(args) = result``."""

    def text(part: Any) -> str:
        match part:
            case ToolPart():
                return f"{part.name}({json.dumps(part.args)}) {part.state}: {part.result}"
            case ReasoningPart():
                return f"<{part.text}>"
            case TextPart():
                return part.text
            case FilePart():
                return f"[{part.media_type}]"
            case _:
                return repr(part)

    return [(message.role, " ".join(text(part) for part in message.parts)) for message in chat.messages]


def noted(chat: Conversation, text: str) -> bool:
    return any(note.startswith(text) for note in chat.notes)


# --- ChatGPT -------------------------------------------------------------------------------------


def node(id: str, parent: str | None, role: str, content: Any, **more: Any) -> dict[str, Any]:
    if isinstance(content, str):
        content = {"content_type": "text", "parts": [content]}
    author = {"role": role, "name": more.pop("name", None), "metadata": {}}
    message = {"id": id, "author": author, "create_time": 1767603600.5, "content": content, "recipient": "all"}
    return {"id": id, "message": message | {"metadata": {}} | more, "parent": parent, "children": []}


def chatgpt(*nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    mapping = {"root": {"id": "root", "message": None, "parent": None}} | {found["id"]: found for found in nodes}
    return {"title": "To Rome", "conversation_id": "c-1", "mapping": mapping, "current_node": nodes[-1]["id"]} | more


CHATGPT = chatgpt(
    node("s", "root", "system", "", metadata={"is_visually_hidden_from_conversation": True}),
    node("i", "s", "user", {"content_type": "user_editable_context", "user_profile": "I'm Ada"}),
    node("u1", "i", "user", "An old wording"),
    node("a0", "u1", "assistant", "An old answer"),
    node("u2", "i", "user", "When do I fly?", metadata={"attachments": [{"name": "ticket.pdf"}]}),
    node("t1", "u2", "assistant", {"content_type": "thoughts", "thoughts": [{"summary": "s", "content": "Search."}]}),
    node("c1", "t1", "assistant", {"content_type": "code", "text": '{"q": "AZ 204"}'}, recipient="web.search"),
    node("r1", "c1", "tool", {"content_type": "execution_output", "text": "09:30"}, name="web.search"),
    node("c2", "r1", "assistant", {"content_type": "code", "text": "print(1)"}, recipient="python"),
    node("r2", "c2", "tool", {"content_type": "execution_output", "text": "1"}, name="python"),
    node("p", "r2", "assistant", {"content_type": "reasoning_recap", "content": "Thought for 3 seconds"}),
    node("a1", "p", "assistant", "At 09:30.\ue200cite\ue202turn0search1\ue201"),
    node("u3", "a1", "user", {"content_type": "multimodal_text", "parts": [
        {"content_type": "image_asset_pointer", "asset_pointer": "file-service://x"}, "My gate?"]}),
)  # fmt: skip


def test_chatgpts_export_is_the_branch_that_it_shows(read: Any):
    chat = read([CHATGPT])
    assert (chat.format, chat.title, chat.id) == ("chatgpt", "To Rome", "c-1")
    assert told(chat) == [
        ("user", "When do I fly? [file: ticket.pdf]"),
        ("assistant", "<Search.>"),
        ("assistant", 'web.search({"q": "AZ 204"}) result: 09:30'),
        ("assistant", 'python({"input": "print(1)"}) result: 1'),
        ("assistant", "At 09:30."),
        ("user", "[image] My gate?"),
    ]
    assert {message.created_at for message in chat.messages} == {datetime(2026, 1, 5, 9, 0, 0, 500000, UTC)}
    assert noted(chat, "messages of other branches, left out: 2")
    assert noted(chat, "custom instructions and saved memories, left out: 1")


def test_every_conversation_of_an_export_has_a_thread_of_its_own(tmp_path: Path):
    empty = {"title": "New chat", "id": "c-0", "mapping": {}, "current_node": None}
    other = chatgpt(node("x", "root", "user", "Hello"), conversation_id="c-2")
    path = write(tmp_path, [empty, CHATGPT, other])
    assert [thread_id_of(path, chat) for chat in read_conversations(path)] == ["c-1", "c-2"]


# --- Claude.ai -----------------------------------------------------------------------------------


def claude(uuid: str, sender: str, *content: Any, **more: Any) -> dict[str, Any]:
    blocks = [{"type": "text", "text": block} if isinstance(block, str) else block for block in content]
    text = "This block is not supported on your current device yet."
    message = {"uuid": uuid, "sender": sender, "text": text, "content": blocks, "attachments": [], "files": []}
    return message | {"created_at": "2026-01-05T09:00:00.000000Z"} | more


CLAUDE_AI = {
    "uuid": "c-1",
    "name": "To Rome",
    "account": {"uuid": "a"},
    "chat_messages": [
        claude("m1", "human", "When do I fly?", attachments=[{"file_name": "a.txt", "extracted_content": "AZ 204"}]),
        claude(
            "m2",
            "assistant",
            {"type": "thinking", "thinking": "Search."},
            {"type": "tool_use", "id": None, "name": "web_search", "input": {"query": "AZ 204"}},
            {"type": "token_budget"},
            {"type": "tool_result", "name": "web_search", "content": [{"type": "text", "text": "09:30"}]},
            "At 09:30.",
        ),
        claude("m3", "human", text="Thanks", files=[{"file_name": "photo.png"}]) | {"content": []},
    ],
}


def test_claude_ais_export_joins_calls_and_results_of_one_message(read: Any):
    chat = read([CLAUDE_AI])
    assert (chat.format, chat.title, chat.id) == ("claude-ai", "To Rome", "c-1")
    assert told(chat) == [
        ("user", "When do I fly? [file: a.txt]\nAZ 204"),
        ("assistant", '<Search.> web_search({"query": "AZ 204"}) result: 09:30 At 09:30.'),
        ("user", "Thanks [file: photo.png]"),
    ]
    assert chat.messages[0].created_at == datetime(2026, 1, 5, 9, tzinfo=UTC)


def test_claude_ais_edited_messages_are_left_out(read: Any):
    root = "00000000-0000-4000-8000-000000000000"
    messages = [
        claude("m1", "human", "Old wording", parent_message_uuid=root),
        claude("m2", "assistant", "Old answer", parent_message_uuid="m1"),
        claude("m3", "human", "New wording", parent_message_uuid=root),
        claude("m4", "assistant", "New answer", parent_message_uuid="m3"),
    ]
    chat = read([{"uuid": "c", "name": "", "chat_messages": messages}])
    assert [text for _, text in told(chat)] == ["New wording", "New answer"]
    assert noted(chat, "messages of other branches, left out: 2")


# --- Codex ---------------------------------------------------------------------------------------


def rollout(kind: str, payload: Any, minute: int = 0) -> dict[str, Any]:
    return {"timestamp": f"2026-01-05T09:{minute:02}:00.000Z", "type": kind, "payload": payload}


def said(role: str, *texts: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text} for text in texts]}


CALL = {"type": "function_call", "name": "shell", "arguments": '{"command": ["ls"]}', "call_id": "call_1"}
REASONING = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "List."}], "content": None}
CODEX = [
    rollout("session_meta", {"id": "s-1", "timestamp": "2026-01-05T09:00:00Z", "cwd": "/x", "cli_version": "0.65.0"}),
    rollout("response_item", said("developer", "<permissions instructions>be careful</permissions instructions>")),
    rollout(
        "response_item", said("user", "# AGENTS.md instructions for /x\n\n<INSTRUCTIONS>…", "<environment_context>")
    ),
    rollout("response_item", said("user", "Which files are there?"), 1),
    rollout("event_msg", {"type": "user_message", "message": "Which files are there?"}, 1),
    rollout("turn_context", {"model": "gpt-5-codex"}, 1),
    rollout("response_item", REASONING, 2),
    rollout("response_item", CALL, 2),
    rollout(
        "response_item",
        {
            "type": "function_call_output",
            "call_id": "call_1",
            "output": json.dumps({"output": "a.py\n", "metadata": {"exit_code": 1}}),
        },
        3,
    ),
    rollout(
        "response_item", {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin", "call_id": "c2"}, 3
    ),
    rollout("response_item", {"type": "custom_tool_call_output", "call_id": "c2", "output": "Done"}, 3),
    rollout("response_item", {"type": "web_search_call", "action": {"type": "search", "query": "x"}}, 3),
    rollout("response_item", said("assistant", "Only a.py."), 4),
    rollout("compacted", {"message": "A summary"}, 5),
]


def test_a_codex_session_is_its_items_without_what_codex_added(read: Any):
    chat = read(lines(*CODEX))
    assert (chat.format, chat.title, chat.id) == ("codex", "file", "s-1")
    assert told(chat) == [
        ("user", "Which files are there?"),
        ("assistant", '<List.> shell({"command": ["ls"]}) result: a.py\n\n[exit code 1]'),
        ("assistant", 'apply_patch({"input": "*** Begin"}) result: Done'),
        ("assistant", 'web_search({"type": "search", "query": "x"}) result: '),
        ("assistant", "Only a.py."),
    ]
    assert [message.created_at.minute for message in chat.messages if message.created_at] == [1, 2, 3, 3, 4]
    for note in (
        "lines of type event_msg, left out: 1",
        "lines of type compacted, left out: 1",
        "instructions of Codex, left out: 1",
        "messages in the user's role that a program added, left out: 1",
    ):
        assert noted(chat, note)


def test_an_old_codex_session_has_the_time_of_its_start(read: Any):
    chat = read(
        lines(
            {"id": "s-0", "timestamp": "2025-07-01T10:00:00Z", "instructions": None, "git": {}},
            {"record_type": "state"},
            said("user", "Which files are there?"),
            said("assistant", "Only a.py."),
        )
    )
    assert (chat.format, chat.id) == ("codex", "s-0")
    assert told(chat) == [("user", "Which files are there?"), ("assistant", "Only a.py.")]
    assert {message.created_at for message in chat.messages} == {datetime(2025, 7, 1, 10, tzinfo=UTC)}


# --- Gemini CLI ----------------------------------------------------------------------------------


GEMINI_META = {"sessionId": "s-1", "projectHash": "h", "startTime": "2026-01-05T09:00:00Z", "lastUpdated": "x"}
GEMINI = [
    {"id": "1", "timestamp": "2026-01-05T09:00:00Z", "type": "user", "content": [{"text": "Read @a.txt AZ 204"}],
     "displayContent": [{"text": "Read @a.txt"}]},
    {"id": "2", "timestamp": "2026-01-05T09:01:00Z", "type": "info", "content": "Update available"},
    {"id": "3", "timestamp": "2026-01-05T09:02:00Z", "type": "gemini", "content": "Your flight is AZ 204.",
     "thoughts": [{"subject": "Reading", "description": "the file", "timestamp": "x"}],
     "toolCalls": [
         {"id": "c1", "name": "read_file", "args": {"path": "a.txt"}, "status": "success", "timestamp": "x", "result": [
             {"functionResponse": {"id": "c1", "name": "read_file", "response": {"output": "AZ 204"}}}]},
         {"id": "c2", "name": "shell", "args": {}, "status": "cancelled", "resultDisplay": "cancelled"}]},
]  # fmt: skip
GEMINI_TOLD = [
    ("user", "Read @a.txt"),
    (
        "assistant",
        '<Reading: the file> Your flight is AZ 204. read_file({"path": "a.txt"}) result: AZ 204 '
        "shell({}) denied: cancelled",
    ),
]


@pytest.mark.parametrize(
    "content",
    [
        GEMINI_META | {"messages": GEMINI, "summary": "Flights"},
        lines(
            GEMINI_META,
            GEMINI[0],
            {"id": "x", "type": "user", "content": "Forget this", "timestamp": "2026-01-05T09:00:00Z"},
            {"$rewindTo": "x"},
            GEMINI[1],
            GEMINI[2] | {"toolCalls": []},
            GEMINI[2],
            {"$set": {"summary": "Flights"}},
        ),
    ],
    ids=["json", "jsonl"],
)
def test_a_session_of_gemini_cli_is_read_in_both_forms(read: Any, content: Any):
    chat = read(content)
    assert (chat.format, chat.title, chat.id) == ("gemini-cli", "Flights", "s-1")
    assert told(chat) == GEMINI_TOLD
    assert noted(chat, "messages of type info, left out: 1")
    assert chat.messages[0].created_at == datetime(2026, 1, 5, 9, tzinfo=UTC)


# --- LangChain -----------------------------------------------------------------------------------


def langchain(kind: str, content: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    fields = {
        "content": content,
        "additional_kwargs": {},
        "response_metadata": {},
        "type": kind,
        "name": None,
        "id": "m",
    }
    return kind, fields | more


LANGCHAIN = [
    langchain("system", "Be brief."),
    langchain("human", [{"type": "text", "text": "Weather in Rome?"}]),
    langchain(
        "ai",
        [{"type": "text", "text": "Let me look."}, {"type": "tool_use", "id": "c1", "name": "weather", "input": {}}],
        tool_calls=[{"name": "weather", "args": {"city": "Rome"}, "id": "c1", "type": "tool_call"}],
    ),
    langchain("tool", "no such city", tool_call_id="c1", status="error"),
    langchain("AIMessageChunk", "I cannot say.", tool_calls=[], invalid_tool_calls=[]),
]
CLASSES = {"human": "HumanMessage", "ai": "AIMessage", "system": "SystemMessage", "tool": "ToolMessage"}


@pytest.mark.parametrize(
    "content",
    [
        [{"type": kind, "data": fields} for kind, fields in LANGCHAIN],
        [
            {
                "lc": 1,
                "type": "constructor",
                "id": ["langchain", "schema", "messages", CLASSES.get(kind, kind)],
                "kwargs": fields,
            }
            for kind, fields in LANGCHAIN
        ],
        {"messages": [fields for _, fields in LANGCHAIN]},
        lines(*({"type": kind, "data": fields} for kind, fields in LANGCHAIN)),
    ],
    ids=["messages_to_dict", "dumpd", "state", "lines"],
)
def test_all_forms_of_langchains_messages_are_read_alike(read: Any, content: Any):
    chat = read(content)
    assert chat.format == "langchain"
    assert told(chat) == [
        ("system", "Be brief."),
        ("user", "Weather in Rome?"),
        ("assistant", 'Let me look. weather({"city": "Rome"}) error: no such city'),
        ("assistant", "I cannot say."),
    ]


# --- Pydantic AI ---------------------------------------------------------------------------------


def test_a_history_of_pydantic_ai_is_read(read: Any):
    from pydantic_ai import messages as lib

    history: list[Any] = [
        lib.ModelRequest(
            parts=[
                lib.SystemPromptPart("Be brief."),
                lib.UserPromptPart(
                    [
                        "Weather here?",
                        lib.ImageUrl("https://example.com/map.png"),
                        lib.BinaryContent(data=b"\xfb\xef\xff", media_type="image/png"),
                    ],
                    timestamp=datetime(2026, 1, 5, 9, tzinfo=UTC),
                ),
            ]
        ),
        lib.ModelResponse(
            parts=[
                lib.ThinkingPart("Ask the tool."),
                lib.TextPart("Wait."),
                lib.ToolCallPart("weather", '{"city": "Rome"}', "c1"),
                lib.ToolCallPart("news", {}, "c2"),
            ],
            timestamp=datetime(2026, 1, 5, 9, 1, tzinfo=UTC),
        ),
        lib.ModelRequest(
            parts=[
                lib.ToolReturnPart("weather", {"degrees": 18}, "c1"),
                lib.ToolReturnPart("news", "Try again.", "c2", outcome="failed"),
            ]
        ),
        lib.ModelResponse(parts=[lib.TextPart("18 °C.")]),
    ]
    chat = read(lib.ModelMessagesTypeAdapter.dump_json(history).decode())
    assert chat.format == "pydantic-ai"
    assert told(chat) == [
        ("system", "Be brief."),
        ("user", "Weather here? [image/png] [image/png]"),
        (
            "assistant",
            '<Ask the tool.> Wait. weather({"city": "Rome"}) result: {\'degrees\': 18} news({}) error: Try again.',
        ),
        ("assistant", "18 °C."),
    ]
    assert chat.messages[1].created_at == datetime(2026, 1, 5, 9, tzinfo=UTC)
    assert chat.messages[2].created_at == datetime(2026, 1, 5, 9, 1, tzinfo=UTC)
    picture = chat.messages[1].parts[2]
    assert isinstance(picture, FilePart)
    assert picture.data == b"\xfb\xef\xff"


# --- OpenAI's Responses --------------------------------------------------------------------------


RESPONSES = [
    {"role": "user", "content": "Weather in Rome?"},
    REASONING,
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": '{"city": "Rome"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "18 °C"},
    {"type": "mcp_call", "id": "mcp_1", "name": "news", "server_label": "x", "arguments": "{}", "error": "down"},
    {"type": "code_interpreter_call", "id": "ci_1", "code": "1 + 1", "outputs": [{"type": "logs", "logs": "2"}]},
    {"type": "compaction", "encrypted_content": "x"},
    {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "18 °C."}]},
]


@pytest.mark.parametrize(
    "content", [RESPONSES, lines(*RESPONSES), {"input": RESPONSES}, {"object": "list", "data": RESPONSES}]
)
def test_items_of_the_responses_api_are_read(read: Any, content: Any):
    chat = read(content)
    assert chat.format == "responses"
    assert told(chat) == [
        ("user", "Weather in Rome?"),
        ("assistant", '<List.> weather({"city": "Rome"}) result: 18 °C'),
        ("assistant", "news({}) error: down"),
        ("assistant", "code_interpreter({\"input\": \"1 + 1\"}) result: [{'type': 'logs', 'logs': '2'}]"),
        ("assistant", "18 °C."),
    ]
    assert noted(chat, "items of type compaction, left out: 1")


# --- all of them ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        [CHATGPT],
        [CLAUDE_AI],
        CODEX,
        [GEMINI_META, *GEMINI],
        [{"type": kind, "data": fields} for kind, fields in LANGCHAIN],
        RESPONSES,
    ],
    ids=["chatgpt", "claude-ai", "codex", "gemini-cli", "langchain", "responses"],
)
def test_ids_are_unique_and_the_same_in_every_reading(read: Any, values: list[Any]):
    first, again = read(values), read(values)
    ids = [message.id for message in first.messages]
    assert ids == [message.id for message in again.messages]
    assert len(set(ids)) == len(ids) > 1


def test_answers_of_anthropics_api_are_no_items_of_the_responses_api(read: Any):
    call = {"type": "tool_use", "id": "1", "name": "look", "input": {}}
    chat = read(
        [
            {"role": "user", "content": "Look!"},
            {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "a bird"}]},
        ]
    )
    assert (chat.format, list(chat.notes)) == ("openai", ["no message has a time stamp"])


def test_several_answers_of_the_responses_api_in_one_file_are_detected(tmp_path: Path):
    one = {"input": [{"type": "reasoning", "summary": []}, *[{"role": "user", "content": "Hi"}]]}
    found = read_conversations(write(tmp_path, [one, one]))
    assert [chat.format for chat in found] == ["responses"] * 2


@pytest.mark.parametrize("values", [CODEX, RESPONSES], ids=["codex", "responses"])
def test_a_grown_file_keeps_the_ids_it_had(read: Any, values: list[Any]):
    whole = [message.id for message in read(values).messages]
    for length in range(6, len(values)):
        ids = [message.id for message in read(values[:length]).messages]
        assert ids == whole[: len(ids)]


@pytest.mark.parametrize(
    ("format", "value", "says"),
    [
        ("chatgpt", {"title": "x"}, "must have a mapping"),
        ("claude-ai", {"uuid": "x"}, "must have a list chat_messages"),
        ("codex", {"type": "response_item"}, "line of type response_item without a payload"),
        ("gemini-cli", {"id": "1"}, "a message must be an object with a type"),
        ("langchain", {"type": "remove"}, "not a message of LangChain"),
        ("pydantic-ai", {"kind": "request"}, "must have the kind request or response, and parts"),
        ("responses", {"type": "message", "role": "nobody"}, "the role 'nobody'"),
    ],
)
def test_what_is_of_another_form_is_refused_with_its_place(read: Any, format: str, value: Any, says: str):
    with pytest.raises(InputError, match=r"file\.json: .*" + says):
        read([value], format=format)
