"""Conversations come out of files whole, dated as the file says, or with an error that helps.

These tests are not in ``tests/integrations``, whose tests run beside frameworks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diarist.convert import to_ui
from diarist.exceptions import InputError
from diarist.integrations.conversations import FORMATS, Conversation, read_conversation, read_conversations
from diarist.messages import FilePart, Message, ReasoningPart, TextPart, ToolPart
from tests.properties import examples


def lines(*values: Any) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def user(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


def assistant(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def call(name: str, arguments: str, id: str | None = "c1") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"type": "function", "function": function} | ({"id": id} if id else {})


WEATHER = [
    {"role": "developer", "content": "Be brief."},
    user("Weather in Rome?"),
    assistant(None, tool_calls=[call("get_weather", '{"city": "Rome"}')]),
    {"role": "tool", "tool_call_id": "c1", "content": "18 °C"},
    assistant("18 °C."),
]


@pytest.fixture
def read(tmp_path: Path):
    def inner(content: Any, name: str = "chat.json", **options: Any) -> Conversation:
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            text = content if isinstance(content, str) else json.dumps(content)
            path.write_text(text, encoding="utf-8")
        return read_conversation(path, **options)

    return inner


def refusal(read: Any, content: Any, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        read(content, **options)
    assert "chat.json" in str(caught.value)
    return str(caught.value)


# --- OpenAI's message lists ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [WEATHER, {"messages": WEATHER}, lines(*WEATHER), lines({"messages": WEATHER}), [WEATHER]],
    ids=["array", "object", "message lines", "conversation line", "array of arrays"],
)
def test_all_shapes_of_openai_lists_are_read_alike(read: Any, content: Any):
    chat = read(content)
    assert chat.format == "openai"
    assert [message.role for message in chat.messages] == ["system", "user", "assistant", "assistant"]
    (part,) = chat.messages[2].tool_parts
    assert (part.name, part.args, part.state) == ("get_weather", {"city": "Rome"}, "result")
    assert part.result == "18 °C"
    assert chat.messages[3].text == "18 °C."
    assert all(message.created_at is None for message in chat.messages)
    assert chat.notes == ["no message has a time stamp"]


def test_parallel_calls_get_their_own_results(read: Any):
    calls = [call("look", '{"n": 1}', "a"), call("look", '{"n": 2}', "b")]
    results = [{"role": "tool", "tool_call_id": id, "content": id * 3} for id in ("b", "a")]
    chat = read([user("?"), assistant("", tool_calls=calls), *results])
    assert [part.result for part in chat.messages[1].tool_parts] == ["aaa", "bbb"]


def test_legacy_function_calls_are_joined_by_name(read: Any):
    turn = assistant(None, function_call={"name": "now", "arguments": ""})
    chat = read([user("Time?"), turn, {"role": "function", "name": "now", "content": "12:00"}])
    (part,) = chat.messages[1].tool_parts
    assert (part.args, part.state, part.result) == ({}, "result", "12:00")


def test_orphans_are_noted_and_open_calls_at_the_end_wait(read: Any):
    orphan = {"role": "tool", "tool_call_id": "gone", "content": "?"}
    chat = read([orphan, user("hi"), assistant(None, tool_calls=[call("look", "{}")])])
    assert [message.text for message in chat.messages] == ["hi"]
    assert chat.waiting[0].tool_parts[0].state == "call"
    assert chat.notes[0] == "tool results without their call, left out: 1 (first: item 1)"
    assert chat.notes[1].startswith("messages at the end that wait for a tool's result")


def test_broken_arguments_are_kept_as_text(read: Any):
    chat = read([user("hi"), assistant(None, tool_calls=[call("look", '{"city": "Ro')])])
    assert chat.waiting[0].tool_parts[0].args == {"arguments": '{"city": "Ro'}
    assert any(note.startswith("tool arguments that cannot be used") for note in chat.notes)


def test_a_refusal_is_the_text_of_its_answer(read: Any):
    chat = read([user("hi"), {"role": "assistant", "content": None, "refusal": "I cannot."}])
    assert chat.messages[1].text == "I cannot."


def test_content_parts_become_text_and_images(read: Any):
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/gif;base64,R0lG"}},
        {"type": "input_audio", "input_audio": {}},
    ]
    text, by_url, inline, audio = read([user(parts)]).messages[0].parts
    assert text == TextPart(text="What is this?")
    assert by_url == FilePart(media_type="image/png", url="https://example.org/cat.png")
    assert inline == FilePart(media_type="image/gif", data=b"GIF")
    assert audio == TextPart(text="[input_audio]")


def test_messages_of_the_ai_sdk_are_read_as_they_were_written(read: Any):
    moment = datetime(2026, 3, 1, 9, tzinfo=UTC)
    photo = FilePart(media_type="image/gif", data=b"GIF", name="cat.gif")
    found = ToolPart(call_id="c1", name="look", args={"at": "cat"}, state="result", result={"cat": True})
    failed = ToolPart(call_id="c2", name="look", args={}, state="error", result="too dark")
    said = [
        Message(role="user", parts=[TextPart(text="What is this?"), photo], created_at=moment),
        Message(role="assistant", parts=[ReasoningPart(text="Hm."), found, failed, TextPart(text="A cat.")]),
    ]
    chat = read(to_ui(said))
    assert [message.parts for message in chat.messages] == [message.parts for message in said]
    assert chat.messages[0].created_at == moment


def test_calls_of_other_versions_of_the_ai_sdk_are_read(read: Any):
    invocation = {"toolCallId": "c1", "toolName": "look", "args": {}, "state": "result", "result": "a cat"}
    dynamic = {"type": "dynamic-tool", "toolCallId": "c2", "toolName": "feel", "input": {}, "state": "output-available"}
    parts = [{"type": "tool-invocation", "toolInvocation": invocation}, {**dynamic, "output": "soft"}]
    (_, answer) = read([user("?"), assistant("A cat.", parts=[*parts, {"type": "text", "text": "A cat."}])]).messages
    assert [(part.name, part.result) for part in answer.tool_parts] == [("look", "a cat"), ("feel", "soft")]
    assert answer.text == "A cat."
    (_, answer) = read([user("?"), assistant("A cat.", toolInvocations=[invocation])]).messages  # before version 4.2
    assert ([part.result for part in answer.tool_parts], answer.text) == (["a cat"], "A cat.")
    files = [
        {"name": "cat.png", "contentType": "image/png", "url": url} for url in ("https://x/c", "data:;base64,aGk=")
    ]
    (question,) = read([user("?", parts=[{"type": "text", "text": "?"}], experimental_attachments=files)]).messages
    (linked, inline) = [part for part in question.parts if isinstance(part, FilePart)]
    assert (linked.url, linked.media_type, linked.name) == ("https://x/c", "image/png", "cat.png")
    assert inline.data == b"hi"


def test_anthropic_blocks_are_joined_too(read: Any):
    use = {"type": "tool_use", "id": "t", "name": "look", "input": {"n": 1}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "no", "is_error": True}
    chat = read([user("?"), assistant([use]), user([result]), assistant("done")])
    assert [message.role for message in chat.messages] == ["user", "assistant", "assistant"]
    (part,) = chat.messages[1].tool_parts
    assert (part.state, part.result) == ("error", "no")


def test_several_conversations_are_counted_and_selected_from_one(read: Any):
    content = lines(*({"messages": [user(text)]} for text in ("first", "second", "third")))
    second = read(content, select=2)
    assert (second.messages[0].text, second.number) == ("second", 2)
    assert second.conversations_in_file == 3
    first = read(content)
    assert first.messages[0].text == "first"
    assert "the file holds 3 conversations; this is the first" in first.notes
    for wrong in (0, 4, -1):
        assert f"holds 3 conversations; select one from 1 to 3, not {wrong}" in refusal(read, content, select=wrong)


# --- plain messages and time stamps --------------------------------------------------------------


@pytest.mark.parametrize("shape", [lines, lambda *values: json.dumps(values)])
def test_plain_messages_keep_their_dates_and_names(read: Any, shape: Any):
    chat = read(
        shape(
            user("Hi", created_at="2026-01-05T09:00:00", name="Ada"),
            assistant("Hello", created_at=1767604000),
        ),
        timezone="Europe/Rome",
    )
    assert chat.format == "plain"
    assert chat.messages[0].created_at == datetime(2026, 1, 5, 8, tzinfo=UTC)
    assert chat.messages[0].metadata == {"name": "Ada"}
    assert chat.messages[1].created_at == datetime(2026, 1, 5, 9, 6, 40, tzinfo=UTC)
    assert chat.notes == []


def test_a_given_date_is_for_undated_conversations_only(read: Any):
    undated = lines(user("a"), assistant("b"))
    for message in read(undated, date=date(2026, 3, 1), timezone="Asia/Tokyo").messages:
        assert message.created_at == datetime(2026, 2, 28, 15, tzinfo=UTC)
    dated = lines(user("a", created_at="2026-01-01T00:00Z"), assistant("b"))
    chat = read(dated, date=date(2026, 3, 1))
    assert chat.messages[0].created_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert chat.messages[1].created_at is None
    assert chat.notes == ["the messages have time stamps of their own; the given date is not used"]


@pytest.mark.parametrize("stamp", ["yesterday", 12.5, True, [], "99999999999999999999", -5])
def test_an_unreadable_time_is_noted_and_not_invented(read: Any, stamp: Any):
    chat = read(lines(user("a", timestamp=stamp), assistant("b")))
    assert chat.messages[0].created_at is None
    assert "time stamps that could not be read: 1 (first: line 1)" in chat.notes


@given(
    moment=st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1)).map(
        lambda value: value.replace(microsecond=0, tzinfo=UTC)
    ),
    form=st.sampled_from(["iso", "zulu", "s", "ms", "us", "text s", "text ms"]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60))
def test_every_usual_form_of_a_time_is_read(read: Any, moment: datetime, form: str):
    seconds = int(moment.timestamp())
    stamp: Any = {
        "iso": moment.isoformat(),
        "zulu": moment.isoformat().replace("+00:00", "Z"),
        "s": seconds,
        "ms": seconds * 1000,
        "us": seconds * 1_000_000,
        "text s": str(seconds),
        "text ms": str(seconds * 1000),
    }[form]
    read_back = read([user("a", created_at=stamp)]).messages[0].created_at
    assert abs(read_back - moment) < timedelta(milliseconds=1)


# --- Claude Code ---------------------------------------------------------------------------------


def event(type: str, content: Any, *, uuid: str, id: str | None = None, **more: Any) -> dict[str, Any]:
    message = {"role": type, "content": content} | ({"id": id} if id else {})
    return {
        "type": type,
        "uuid": uuid,
        "sessionId": "s",
        "timestamp": f"2026-01-05T10:00:{int(uuid):02}.500Z",
        "message": message,
        **more,
    }


def thinking(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": "x" * 2000}


SESSION = [
    {"type": "summary", "summary": "Another session", "leafUuid": "elsewhere"},
    {"type": "summary", "summary": "Fixing the parser", "leafUuid": "8"},
    {"type": "file-history-snapshot", "snapshot": {}},
    event("user", "Caveat: local commands follow.", uuid="1", isMeta=True),
    event("user", "<command-name>/model</command-name>\n<command-args>big</command-args>", uuid="2"),
    event("user", "<local-command-stdout>\x1b[1mset\x1b[22m</local-command-stdout>", uuid="3"),
    event(
        "user",
        [
            {"type": "text", "text": "<ide_selection>line 3</ide_selection>"},
            {"type": "text", "text": "Fix it<system-reminder>be nice</system-reminder>"},
        ],
        uuid="4",
    ),
    event("assistant", [thinking("Where is it?")], uuid="5", id="m1"),
    event("assistant", [{"type": "text", "text": "Let me look."}], uuid="6", id="m1"),
    event(
        "assistant",
        [{"type": "tool_use", "id": "t1", "name": "Read", "input": {"path": "a.py"}}],
        uuid="7",
        id="m1",
    ),
    event(
        "user",
        [
            {
                "type": "tool_result",
                "tool_use_id": "t1",
                "content": "\x1b[31mx = 1\x1b[0m\n<system-reminder>no malware</system-reminder>\n",
            }
        ],
        uuid="8",
    ),
    event("user", "a subagent's task", uuid="9", isSidechain=True),
    event(
        "assistant",
        [{"type": "tool_use", "id": "t2", "name": "Edit", "input": {}}],
        uuid="10",
        id="m2",
    ),
    event(
        "user",
        [
            {
                "type": "tool_result",
                "tool_use_id": "t2",
                "is_error": True,
                "content": "The user doesn't want to proceed. Reason: keep x.",
            }
        ],
        uuid="11",
    ),
]


def test_a_claude_code_session_is_the_users_words_and_the_assistants_lines(read: Any):
    chat = read(lines(*SESSION))
    assert (chat.format, chat.title) == ("claude-code", "Fixing the parser")
    assert [(message.role, message.text) for message in chat.messages] == [
        ("user", "/model big"),
        ("user", "Fix it"),
        ("assistant", "Let me look."),
        ("assistant", ""),
        ("assistant", ""),
    ]
    assert [[part.type for part in message.parts] for message in chat.messages[2:]] == [
        ["reasoning", "text"],
        ["tool"],
        ["tool"],
    ]
    assert chat.messages[2].parts[0] == ReasoningPart(text="Where is it?")
    assert chat.messages[2].created_at == datetime(2026, 1, 5, 10, 0, 6, 500_000, tzinfo=UTC)
    (seen,) = chat.messages[3].tool_parts
    assert (seen.result, seen.state) == ("x = 1", "result")
    (denied,) = chat.messages[4].tool_parts
    assert denied.state == "denied"
    assert "keep x" in denied.result


def test_reasoning_of_an_answer_that_the_user_stopped_belongs_to_no_other(read: Any):
    thinking = [{"type": "thinking", "thinking": "a plan", "signature": "x"}]
    chat = read(
        lines(
            event("user", "Plan it", uuid="1"),
            event("assistant", thinking, uuid="2"),
            event("user", "Stop. What is 2+2?", uuid="3"),
            event("assistant", [{"type": "text", "text": "4"}], uuid="4"),
        )
    )
    assert [[part.type for part in message.parts] for message in chat.messages] == [["text"]] * 3
    assert chat.notes == ["reasoning without an answer, left out: 1 (first: line 3)"]


def test_skipped_lines_of_a_session_are_counted(read: Any):
    assert read(lines(*SESSION)).notes == [
        "lines of type summary, left out: 2 (first: line 1)",
        "lines of type file-history-snapshot, left out: 1 (first: line 3)",
        "lines that Claude Code added in the user's role, left out: 1 (first: line 4)",
        "user lines with nothing but Claude Code's own output, left out: 1 (first: line 6)",
        "lines of subagents, left out: 1 (first: line 12)",
    ]


def test_a_subagents_own_file_is_read(read: Any):
    side = {"isSidechain": True}
    chat = read(lines(event("user", "Task", uuid="1", **side), event("assistant", "Ok", uuid="2", **side)))
    assert [message.text for message in chat.messages] == ["Task", "Ok"]


def test_repeated_lines_of_a_session_count_once(read: Any):
    chat = read(lines(SESSION[6], SESSION[6]))
    assert len(chat.messages) == 1


# --- LoCoMo and tau-bench ------------------------------------------------------------------------

LOCOMO = [
    {
        "sample_id": "conv-1",
        "qa": [],
        "conversation": {
            "speaker_a": "Ann",
            "speaker_b": "Bo",
            "session_10_date_time": "12:05 am on 1 June, 2023",
            "session_10": [{"speaker": "Bo", "dia_id": "D10:1", "text": "Last."}],
            "session_2_date_time": "1:56 pm on 8 May, 2023",
            "session_2": [
                {"speaker": "Ann", "dia_id": "D2:1", "text": "Hi!"},
                {"speaker": "Bo", "dia_id": "D2:2", "text": "Look", "blip_caption": "a red kite"},
            ],
            "session_11_date_time": "some day",
        },
    },
    {"conversation": {"speaker_a": "Cy", "speaker_b": "Di", "session_1": []}},
]


def test_locomo_sessions_come_in_order_with_their_sessions_time(read: Any):
    chat = read(LOCOMO, select=1)
    assert (chat.format, chat.conversations_in_file) == ("locomo", 2)
    assert [(m.role, m.text, m.metadata["name"]) for m in chat.messages] == [
        ("user", "Hi!", "Ann"),
        ("assistant", "Look\n[image: a red kite]", "Bo"),
        ("assistant", "Last.", "Bo"),
    ]
    assert [message.created_at for message in chat.messages] == [
        datetime(2023, 5, 8, 13, 56, tzinfo=UTC),
        datetime(2023, 5, 8, 13, 56, tzinfo=UTC),
        datetime(2023, 6, 1, 0, 5, tzinfo=UTC),
    ]
    assert "conversation 2 holds no messages" in refusal(read, LOCOMO, select=2)


def test_tau_bench_runs_are_selected_with_their_policy(read: Any):
    runs = [{"task_id": n, "trial": 0, "traj": [*WEATHER, user(f"run {n}")]} for n in range(3)]
    chat = read(runs, select=3)
    assert (chat.format, chat.title) == ("tau-bench", "task 2, trial 0")
    assert chat.messages[0].role == "system"
    assert chat.messages[-1].text == "run 2"
    assert chat.messages[2].tool_parts[0].result == "18 °C"


# --- ids -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [lines(*WEATHER), lines(*SESSION), json.dumps(LOCOMO)])
def test_ids_are_the_same_in_every_reading_and_unique(read: Any, content: str):
    first = [message.id for message in read(content).messages]
    again = [message.id for message in read(content, "renamed.json", date=date(2026, 1, 1)).messages]
    assert first == again
    assert len(set(first)) == len(first)


def test_a_grown_file_keeps_the_ids_it_had(read: Any):
    before = read(lines(user("a"), assistant("b"))).messages
    after = read(lines(user("a"), assistant("b"), user("a"))).messages
    assert [message.id for message in after[:2]] == [message.id for message in before]
    assert after[2].id not in {message.id for message in before}


def test_a_turn_read_while_it_was_written_is_the_beginning_of_the_whole(read: Any):
    whole = [message.id for message in read(lines(*SESSION)).messages]
    for count in range(5, len(SESSION)):
        half = [message.id for message in read(lines(*SESSION[:count])).messages]
        assert half == whole[: len(half)]


# --- files that cannot be read -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file is empty"),
        (b" \n\n", "the file is empty"),
        (b"\x89PNG\r\n\0\0", "is a binary file"),
        ("hi".encode("utf-16"), "is UTF-16; save it as UTF-8"),
        (b'{"role": "user"}\n{"a": "\xe9"}', "line 2: not UTF-8 (byte 0xe9 at offset 24)"),
        (b'\xef\xbb\xbf["\xff"]', "line 1: not UTF-8 (byte 0xff at offset 5)"),
        (b'[\n {"role" "user"}\n]', "line 2, column 10: not JSON"),
        (b"hello", "line 1, column 1: not JSON"),
        (lines(user("a")) + "oops\n" + lines(user("b")), "line 2, column 1: not JSON"),
        ("oops\n" + lines(user("b")), "line 1, column 1: not JSON"),
        (lines(user("a"), user("b")) + '{"role": "us', "line 3, column"),
        (lines(user("a"), user("b")) + '{"role": "us', "the last line looks cut off"),
        (b"[]", "not a conversation in a known format"),
        (b"42", "not a conversation in a known format (no JSON objects)"),
        (b'{"foo": 1, "bar": 2}', "its first object has the keys foo, bar"),
        (b'{"messages": []}', "holds no messages"),
        (json.dumps([user("a"), user("b"), {"role": "bot"}]), "3: a message with the role 'bot'"),
        (json.dumps({"messages": [user("a"), "b"]}), "message 2: a message must be an object"),
        (lines({"messages": [user("a"), {}]}), "message 2: a message with no role"),
        (lines(user("a"), user({"x": 1})), "line 2: content must be a text or a list of parts"),
        (lines(user("a"), user([{"text": "x"}])), "line 2: every part of content needs a type"),
        (lines(user("a"), assistant("", tool_calls=[{"id": "c"}])), "line 2: a tool call without"),
        (lines(event("user", "a", uuid="1"), {"type": "user"}), "line 2: a line of type user"),
        (json.dumps({"speaker_a": "A", "speaker_b": "B", "session_1": [{"speaker": "C"}]}),
         "session_1, message 1: unknown speaker 'C'"),
        (json.dumps([{"traj": "no"}]), "a run must have its messages under traj"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_with_its_place(read: Any, content: Any, says: str):
    assert says in refusal(read, content)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path):
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_conversation(tmp_path / "nowhere.json")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_conversation(tmp_path)


def test_bad_options_are_refused(read: Any):
    with pytest.raises(InputError, match="unknown time zone 'Mars/Base'"):
        read([user("a")], timezone="Mars/Base")
    with pytest.raises(InputError, match="unknown format 'csv'; known: claude-code"):
        read([user("a")], format="csv")
    assert "speaker_a and speaker_b must be two different names" in refusal(read, [user("a")], format="locomo")


def test_a_format_can_be_named(read: Any):
    assert read([user("a")], format="openai").format == "openai"


SESSION_WITH_ODD_LINES = (
    '{"type": "user", "uuid": "a", "message": {"role": "user", "content": "My flight is AZ 204."}}\n'
    '{"type": "user", "uuid": "b"}\n'
    '{"type": "assist\n'
    '{"type": "assistant", "uuid": "c", "message": {"role": "assistant", "content": "Noted."}}\n'
)


@pytest.mark.parametrize(
    ("content", "places"),
    [
        (SESSION_WITH_ODD_LINES, ["1 (first: line 2)", "1 (first: line 3)"]),
        (lines(user("My flight is AZ 204."), {"role": "nobody", "content": "x"}, 7, assistant("Noted.")), ["2"]),
        ([user("My flight is AZ 204."), assistant({"no": "text"}), assistant("Noted.")], ["1 (first: item 2)"]),
        (lines(user("My flight is AZ 204."), assistant("Noted.")) + "{cut", ["1 (first: line 3)"]),
        (
            lines(user("My flight is AZ 204.")) + "{cut\n" + lines({"role": "nobody"}, assistant("Noted.")),
            ["1 (first: line 3)", "1 (first: line 2)"],
        ),
    ],
)
def test_broken_lines_can_be_left_out(read: Any, content: Any, places: list[str]):
    with pytest.raises(InputError):
        read(content)
    chat = read(content, skip_broken_lines=True)
    assert [message.text for message in chat.messages] == ["My flight is AZ 204.", "Noted."]
    notes = [note for note in chat.notes if note.startswith(("broken lines or messages, left out: ", "lines that"))]
    assert len(notes) == len(places)
    assert all(place in note for place, note in zip(places, notes, strict=True))


def test_a_file_of_broken_lines_only_is_refused_nevertheless(read: Any):
    with pytest.raises(InputError, match="holds no messages"):
        read([{"role": "nobody", "content": "x"}], skip_broken_lines=True)


def test_empty_conversations_of_many_are_left_out(read: Any, tmp_path: Path):
    path = tmp_path / "chats.json"
    path.write_text(json.dumps([{"messages": []}, {"messages": [user("x")]}, {"messages": []}]))
    (chat,) = read_conversations(path)
    assert (chat.number, chat.conversations_in_file) == (2, 3)
    assert "conversations without messages, left out: 2" in chat.notes
    notes: list[str] = []
    (chat,) = read_conversations(path, on_note=notes.append)
    assert notes == ["conversations without messages, left out: 2"]
    assert "conversations without messages, left out: 2" not in chat.notes


def test_an_archive_has_to_be_unpacked(read: Any):
    with pytest.raises(InputError, match=r"is a zip archive; unpack it, and name .*conversations\.json"):
        read(b"PK\x03\x04\x14\0\0\0")


def test_odd_but_legal_text_survives(read: Any):
    odd = "line\u2028separator, half \ud83d surrogate, \x85"
    chat = read(b"\xef\xbb\xbf" + lines(user(odd), user("b")).replace("\n", "\r\n").encode())
    assert chat.messages[0].text == "line\u2028separator, half \ufffd surrogate, \x85"


def test_long_integers_keep_their_digits(read: Any):
    call = {"type": "tool_use", "id": "1", "name": "pay", "input": {"amount": 10**25 + 1, "id": 2**64 - 1, "rate": 0.1}}
    chat = read(lines(user("Pay."), {"role": "assistant", "content": [call]}))
    assert chat.waiting[0].tool_parts[0].args == {"amount": str(10**25 + 1), "id": 2**64 - 1, "rate": 0.1}


KEYS = ["role", "content", "messages", "type", "message", "uuid", "tool_calls", "function", "name",
        "tool_call_id", "traj", "conversation", "speaker_a", "speaker_b", "session_1", "timestamp",
        "text", "id", "input", "speaker", "image_url", "arguments"]  # fmt: skip
WORDS = ["user", "assistant", "tool", "text", "tool_use", "tool_result", "image_url", "A", "B", ""]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=30,
)


@given(values=st.lists(JSON, min_size=1, max_size=4), format=st.none() | st.sampled_from(FORMATS))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_json_is_read_or_refused(read: Any, values: list[Any], format: str | None):
    for content in (lines(*values), json.dumps(values)):
        try:
            chat = read(content, format=format)
        except InputError:
            continue
        assert chat.messages
        assert all(message.parts for message in chat.messages)


def test_reading_needs_no_heavy_library():
    code = (
        "import sys, diarist.integrations.conversations\n"
        "heavy = {'asyncpg', 'pydantic_ai', 'openai', 'tiktoken', 'pydantic'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
