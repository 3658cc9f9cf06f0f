"""From messages to the prompt: what may be there, in which order, and what never is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarist.message_list import SystemMessage
from diarist.messages import (
    DataPart,
    FilePart,
    Message,
    Part,
    Prompt,
    ReasoningPart,
    SentBlock,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolPart,
    ToolResultPart,
)
from diarist.prompting import FEEDBACK_TAG, build_prompt

TEXTS = st.text("ab ", min_size=1, max_size=5)


@st.composite
def parts(draw: st.DrawFn) -> Part:
    kind = draw(st.sampled_from(["text", "reasoning", "tool", "file", "source", "data"]))
    match kind:
        case "text":
            return TextPart(text=draw(TEXTS), provider_data=draw(st.none() | st.just({"id": "x"})))
        case "reasoning":
            return ReasoningPart(text=draw(TEXTS), signature=draw(st.none() | TEXTS))
        case "tool":
            state = draw(st.sampled_from(["call", "result", "error", "denied"]))
            call_id = f"call_{draw(st.integers(0, 10**9))}"
            return ToolPart(call_id=call_id, name="t", args={"q": draw(TEXTS)}, state=state, result=draw(TEXTS))
        case "file":
            return FilePart(media_type="image/png", data=b"x")
        case "source":
            return SourcePart(url="https://example.com")
        case _:
            return DataPart(type="data-x", data=draw(TEXTS))


@st.composite
def messages(draw: st.DrawFn) -> Message:
    role: Any = draw(st.sampled_from(["user", "assistant"]))
    sent = SentBlock(text=draw(TEXTS)) if role == "user" and draw(st.booleans()) else None
    return Message(role=role, parts=draw(st.lists(parts(), max_size=5)), sent=sent)


SYSTEM = st.lists(st.builds(SystemMessage, TEXTS, st.none() | st.just("memory")), max_size=3)
CONVERSATION = st.lists(messages(), max_size=6)


@given(SYSTEM, CONVERSATION, st.none() | TEXTS, st.booleans())
def test_no_call_without_its_result_right_after_it(
    system: list[SystemMessage], conversation: list[Message], feedback: str | None, breakpoints: bool
) -> None:
    prompt = build_prompt(system, conversation, feedback=feedback, cache_breakpoints=breakpoints).messages
    for before, after in zip([None, *prompt], [*prompt, None], strict=True):
        calls = [p.call_id for p in before.parts if isinstance(p, ToolCallPart)] if before else []
        results = [p.call_id for p in after.parts if isinstance(p, ToolResultPart)] if after else []
        assert calls == results
    done = [p.call_id for m in conversation if m.role == "assistant" for p in m.tool_parts if p.state != "call"]
    assert [p.call_id for m in prompt for p in m.parts if isinstance(p, ToolCallPart)] == done, "none is lost"


@given(SYSTEM, CONVERSATION, st.none() | TEXTS)
def test_roles_and_parts_are_those_that_a_provider_takes(
    system: list[SystemMessage], conversation: list[Message], feedback: str | None
) -> None:
    prompt = build_prompt(system, conversation, feedback=feedback).messages
    assert [m.role for m in prompt[: len(system)]] == ["system"] * len(system)
    for message in prompt[len(system) :]:
        assert message.parts, "no empty message"
        match message.role:
            case "user":
                assert all(isinstance(part, TextPart | FilePart) for part in message.parts)
            case "assistant":
                allowed = TextPart | ReasoningPart | FilePart | ToolCallPart
                assert all(isinstance(part, allowed) for part in message.parts)
                assert not all(isinstance(part, ReasoningPart) for part in message.parts), "never thinking alone"
            case "tool":
                assert all(isinstance(part, ToolResultPart) for part in message.parts)
            case "system":
                raise AssertionError("system messages come first")


@given(SYSTEM, CONVERSATION, TEXTS)
def test_feedback_is_the_last_message_and_changes_nothing_before_it(
    system: list[SystemMessage], conversation: list[Message], feedback: str
) -> None:
    without = build_prompt(system, conversation).messages
    with_it = build_prompt(system, conversation, feedback=feedback).messages
    assert with_it[:-1] == without
    assert (with_it[-1].role, with_it[-1].message_id) == ("user", None)
    assert with_it[-1].text == f"<{FEEDBACK_TAG}>\n{feedback}\n</{FEEDBACK_TAG}>"


@given(SYSTEM, CONVERSATION)
def test_the_order_is_that_of_the_messages_and_their_parts(
    system: list[SystemMessage], conversation: list[Message]
) -> None:
    prompt = build_prompt(system, conversation).messages[len(system) :]
    order = [message.id for message in conversation]
    places = [order.index(message.message_id or "") for message in prompt]
    assert places == sorted(places)
    for message in conversation:
        expected = [p.text for p in message.parts if isinstance(p, TextPart)]
        texts = [p.text for m in prompt if m.message_id == message.id for p in m.parts if isinstance(p, TextPart)]
        if message.sent:
            assert texts[0].startswith(message.sent.text)
            joined = "".join(texts).removeprefix(message.sent.text).removeprefix("\n\n")
            assert joined == "".join(expected)
        else:
            assert texts == expected


@given(SYSTEM, CONVERSATION, messages())
def test_a_new_message_leaves_what_was_sent_before_as_it_was(
    system: list[SystemMessage], conversation: list[Message], new: Message
) -> None:
    before = build_prompt(system, conversation).messages
    assert build_prompt(system, [*conversation, new]).messages[: len(before)] == before


@given(SYSTEM, CONVERSATION, st.none() | TEXTS)
def test_breakpoints(system: list[SystemMessage], conversation: list[Message], feedback: str | None) -> None:
    plain = build_prompt(system, conversation, feedback=feedback)
    assert not any(message.cache for message in plain)
    marked = build_prompt(system, conversation, feedback=feedback, cache_breakpoints=True)
    assert marked.text == plain.text
    assert sum(message.cache for message in marked) <= 4, "what providers allow"
    if feedback is not None:
        assert not marked.messages[-1].cache, "feedback is for one attempt: nothing after it will be asked again"
    turns = [m for m in marked.messages[len(system) :] if m.message_id is not None]
    if turns:
        assert turns[-1].cache


def said(name: str, run_id: str | None = "r1", role: Any = "user") -> Message:
    return Message(role=role, parts=[TextPart(text=name)], run_id=run_id)


def looked(name: str, run_id: str | None = "r1") -> Message:
    part = ToolPart(call_id=name, name="look", args={}, state="result", result=name)
    return Message(role="assistant", parts=[part], run_id=run_id)


OLD = [said("u1"), looked("s1"), said("a1", role="assistant")]


@pytest.mark.parametrize(
    ("conversation", "sent_before"),
    [
        ([said("u1")], None),
        ([said("u1"), looked("s1")], "u1"),
        ([said("u1"), looked("s1"), looked("s2")], "s1"),
        ([*OLD, said("u2", "r2")], "s1"),
        ([*OLD, said("u2", "r2"), said("u3", "r2")], "s1"),
        ([*OLD, said("u2", "r2"), said("told", "r2", "assistant"), said("u3", "r2")], "s1"),
        ([*OLD, said("u2", "r2"), said("context", None)], "s1"),
        ([*OLD, said("u2", "r2"), looked("s2", "r2")], "u2"),
        ([*OLD, said("unanswered", "r2"), said("u3", "r3")], "unanswered"),
        ([said("u1", None), said("a1", None, "assistant"), said("u2", None)], "u1"),
        ([said("u1", None), said("a1", None, "assistant"), said("u2", None), looked("s2", None)], "u2"),
    ],
)
def test_a_breakpoint_stands_where_the_request_before_ended(conversation: list[Message], sent_before: Any) -> None:
    prompt = build_prompt([SystemMessage("Be kind.", None)], conversation, cache_breakpoints=True)
    *before, last = [m.text for m in prompt if m.cache and m.role != "system"]
    assert before == ([sent_before] if sent_before else [])
    assert last == prompt.messages[-1].text


@given(CONVERSATION)
def test_editing_a_prompt_does_not_edit_the_conversation(conversation: list[Message]) -> None:
    before = [message.to_dict() for message in conversation]
    edit(build_prompt([], conversation))
    assert [message.to_dict() for message in conversation] == before


def edit(prompt: Prompt) -> None:
    for message in prompt:
        for part in message.parts:
            match part:
                case TextPart() | ReasoningPart():
                    part.text = "edited"
                    if part.provider_data:
                        part.provider_data["edited"] = True
                case ToolCallPart():
                    part.args["edited"] = True
                case ToolResultPart():
                    part.text = "edited"
                case FilePart():
                    part.url = "edited"
        message.parts.clear()


def test_text_after_a_result_is_a_message_of_its_own() -> None:
    tool = ToolPart(call_id="1", name="t", args={}, state="result", result={"a": 1})
    message = Message(role="assistant", parts=[TextPart(text="a"), tool, TextPart(text="b")])
    prompt = build_prompt([], [message])
    assert [(m.role, m.text) for m in prompt] == [("assistant", "at({})"), ("tool", '{"a":1}'), ("assistant", "b")]


def test_errors_are_marked() -> None:
    tool = ToolPart(call_id="1", name="t", args={}, state="error", result="boom")
    prompt = build_prompt([], [Message(role="assistant", parts=[tool])])
    (result,) = prompt.messages[1].parts
    assert isinstance(result, ToolResultPart)
    assert (result.text, result.is_error) == ("boom", True)


@pytest.mark.parametrize(
    ("reason", "sent"),
    [
        ("Bob paid it in cash.", "This call was declined: Bob paid it in cash."),
        ("The user declined this call.", "The user declined this call."),
    ],
)
def test_the_text_of_a_denied_call_says_that_it_was_declined(reason: str, sent: str) -> None:
    call = ToolPart(call_id="1", name="pay", args={})
    denied = replace(call, state="denied", result=reason)
    by_a_processor = [Message(role="assistant", parts=[denied])]
    by_a_person = [Message(role="assistant", parts=[call]), Message(role="tool", parts=[denied])]
    late = [Message.user("Pay."), Message(role="tool", parts=[denied])]
    assert [build_prompt([], history).messages[-1].text for history in (by_a_processor, by_a_person, late)] == [
        sent,
        sent,
        f"[Late result of pay, call 1]\n{sent}",
    ]
    assert denied.result == reason


def test_the_block_that_memory_sent_stands_before_the_users_words() -> None:
    message = Message.user("hi", sent=SentBlock(text="Today is Monday."))
    assert [m.text for m in build_prompt([], [message])] == ["Today is Monday.\n\nhi"]
    image = Message(role="user", parts=[FilePart(media_type="image/png", data=b"x")], sent=SentBlock(text="Monday."))
    assert [part.type for part in build_prompt([], [image]).messages[0].parts] == ["text", "file"]


def test_a_pending_call_takes_its_lonely_thinking_with_it() -> None:
    parts: list[Part] = [ReasoningPart(text="hm", signature="s"), ToolPart(call_id="1", name="t", args={})]
    assert build_prompt([], [Message(role="assistant", parts=parts)]).messages == []
