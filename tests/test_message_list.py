"""The messages of a run: what is shown, what is hidden, and what a returned list makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarist.convert import to_openai, to_ui
from diarist.exceptions import InputError
from diarist.message_list import MessageList, Origin, SystemMessage, to_messages
from diarist.messages import FilePart, Message, TextPart

IDS = st.sampled_from([f"m{i}" for i in range(8)])
ORIGINS: tuple[Origin, ...] = ("input", "memory", "response", "context")


def message(id: str, *, seq: int | None = None) -> Message:
    return Message.user(id, id=id, seq=seq)


def ids(messages: list[Message]) -> list[str]:
    return [item.id for item in messages]


@st.composite
def lists(draw: st.DrawFn) -> MessageList:
    """A list in any state: messages of all sources, some stored, some hidden."""
    out = MessageList(["instructions"])
    for id in draw(st.lists(IDS, unique=True)):
        out.add(message(id, seq=draw(st.none() | st.integers(0, 9))), draw(st.sampled_from(ORIGINS)))
    if draw(st.booleans()):
        out.remember([m for m in out.all if draw(st.booleans())])
    return out


def check(messages: MessageList) -> None:
    """What holds of every list."""
    everything = ids(messages.all)
    assert len(everything) == len(set(everything)) == len(messages)
    assert sorted(everything) == sorted(id for source in ORIGINS for id in ids(messages.of(source)))
    assert all(messages.origin_of(id) in ORIGINS for id in everything)
    shown = ids(messages.messages)
    assert shown == [id for id in everything if id in shown], "what is shown keeps the order"
    assert all(m.seq is not None for m in messages.all if m.id not in shown), "only stored messages are hidden"
    assert not set(ids(messages.remembered)) - set(shown), "what memory brought is never hidden"


@given(lists())
def test_every_list_is_consistent(messages: MessageList) -> None:
    check(messages)


@given(lists(), st.lists(IDS), st.sampled_from(ORIGINS))
def test_reconciling(messages: MessageList, returned: list[str], default: Origin) -> None:
    before, shown = messages.all, messages.messages
    hidden = [m for m in before if m not in shown]
    sources = {m.id: messages.origin_of(m.id) for m in before}
    new = {m.id: m for m in hidden} | {id: message(id) for id in returned if id not in ids(hidden)}
    messages.reconcile(shown, [new[id] for id in returned], default=default)
    expected = list(dict.fromkeys(returned))
    assert [id for id in ids(messages.all) if id in expected] == expected, "order follows what was returned"
    for other in set(ids(hidden)) - set(expected):
        before_it = [id for id in ids(before)[: ids(before).index(other)] if id in expected]
        now = [id for id in ids(messages.all)[: ids(messages.all).index(other)] if id in expected]
        assert now[-1:] == before_it[-1:], "what was not shown stays behind the one before it"
    for id in expected:
        assert messages.origin_of(id) == sources.get(id, default)
        assert next(m for m in messages.all if m.id == id) is new[id]
    assert set(ids(messages.all)) == set(expected) | set(ids(hidden)), "what is missing is gone"
    check(messages)


@given(lists())
def test_returning_what_was_shown_changes_nothing_that_is_shown(messages: MessageList) -> None:
    before = messages.messages
    messages.reconcile(before, before, default="context")
    assert ids(messages.messages) == ids(before)
    check(messages)


@given(lists(), st.lists(st.integers(0, 30), unique=True).map(sorted))
def test_remembering(messages: MessageList, numbers: list[int]) -> None:
    """A window of the thread: rows by ``seq``, some of them the run's own."""
    own = [m for m in messages.all if messages.origin_of(m.id) != "memory"]
    stored = {m.id: m for m in own}
    window = [stored.get(f"m{n}", message(f"m{n}", seq=n)) for n in numbers]
    messages.remember(window)
    check(messages)
    assert set(ids(messages.remembered)) == set(ids(window)) - set(ids(own)), "memory brought what was not here"
    assert [m for m in messages.all if m in own] == own, "the run's own messages stay, in their order"
    for m in own:
        covered = m.seq is not None and m.id not in ids(window) and messages.origin_of(m.id) != "context"
        assert (m.id not in ids(messages.messages)) == covered
    messages.remember(window)
    again = ids(messages.messages)
    messages.remember(window)
    assert ids(messages.messages) == again, "remembering the same is no change"


@given(st.lists(st.integers(0, 20), unique=True).map(sorted), st.integers(0, 20), st.data())
def test_what_memory_brings_is_in_the_order_of_the_thread(numbers: list[int], start: int, data: st.DataObject) -> None:
    messages = MessageList()
    messages.add(message("new"), "input")
    rows = [message(f"m{n}", seq=n) for n in numbers]
    for _ in range(3):
        window = rows[data.draw(st.integers(0, len(rows))) :]
        messages.remember(window)
        assert ids(messages.messages) == [*ids(window), "new"]


@given(lists(), st.lists(IDS, unique=True))
def test_snapshot_and_restore(messages: MessageList, others: list[str]) -> None:
    before = (messages.all, ids(messages.messages), messages.system, [messages.origin_of(m.id) for m in messages.all])
    snapshot = messages.snapshot()
    messages.remove(others)
    messages.add(message("another"), "response")
    messages.add_system("more", tag="x")
    messages.remember([message("row", seq=1)])
    messages.restore(snapshot)
    after = (messages.all, ids(messages.messages), messages.system, [messages.origin_of(m.id) for m in messages.all])
    assert after == before


def test_what_was_added_while_a_processor_worked_stays_where_it_was_put() -> None:
    messages = MessageList()
    for id in ("a", "b"):
        messages.add(message(id))
    shown = messages.messages
    messages.add(message("late"), "context")
    messages.reconcile(shown, [message("new"), *shown], default="input")
    assert ids(messages.messages) == ["new", "a", "b", "late"]


def test_adding_a_known_id_replaces_it_in_its_place() -> None:
    messages = MessageList()
    for id in ("a", "b"):
        messages.add(message(id), "input")
    replacement = Message.user("other", id="a")
    messages.add(replacement, "memory")
    assert messages.all[0] is replacement
    assert messages.origin_of("a") == "memory"
    assert len(messages) == 2


def test_a_row_that_is_here_already_stays_as_it_is_and_the_others_go_around_it() -> None:
    messages = MessageList()
    edited = message("b")
    messages.add(edited, "input")
    messages.add(message("new"), "input")
    messages.recall([message("a", seq=1), message("b", seq=2), message("c", seq=3)])
    assert ids(messages.messages) == ["a", "b", "c", "new"]
    assert messages.all[1] is edited


def test_views() -> None:
    messages = MessageList(["one", "", "two"])
    for source in ORIGINS:
        messages.add(message(source), source)
    assert ids(messages.all) == ["memory", "input", "response", "context"]
    assert (ids(messages.input), ids(messages.response), ids(messages.remembered)) == (
        ["input"],
        ["response"],
        ["memory"],
    )
    assert messages.system == [SystemMessage("one"), SystemMessage("two")]
    assert messages.origin_of("nobody") is None


def test_system_messages() -> None:
    messages = MessageList(["own"])
    messages.add(Message.system("given"), "input")
    messages.add_system("diary", tag="memory")
    messages.add_system("")
    assert messages.system == [SystemMessage("own"), SystemMessage("given", "input"), SystemMessage("diary", "memory")]
    messages.replace_system(["new", SystemMessage("tagged", "t")])
    assert messages.system == [SystemMessage("new"), SystemMessage("tagged", "t")]
    assert messages.all == []


def test_a_views_list_is_the_readers_own() -> None:
    messages = MessageList(["own"])
    messages.add(message("a"))
    for view in (messages.all, messages.messages, messages.input):
        view.clear()
    messages.system.clear()
    assert (ids(messages.all), len(messages.system)) == (["a"], 1)


# -- what callers give


@pytest.mark.parametrize(
    ("value", "roles", "texts"),
    [
        ("hi", ["user"], ["hi"]),
        ({"role": "assistant", "content": "a"}, ["assistant"], ["a"]),
        ([{"role": "user", "content": ["a", {"type": "text", "text": "b"}]}], ["user"], ["ab"]),
        ({"role": "developer", "content": "a"}, ["system"], ["a"]),
        ((Message.user("a"), Message.system("b")), ["user", "system"], ["a", "b"]),
        ({"role": "user", "parts": [{"type": "text", "text": "stored"}]}, ["user"], ["stored"]),
    ],
)
def test_forms_of_input(value: Any, roles: list[str], texts: list[str]) -> None:
    out = to_messages(value)
    assert ([m.role for m in out], [m.text for m in out]) == (roles, texts)
    assert all(m.created_at is not None for m in out)


def test_images_and_ids_of_dictionaries() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    (out,) = to_messages({"role": "user", "id": 7, "content": [image]})
    assert out.id == "7"
    assert out.parts == [FilePart(media_type="image/*", url="https://example.com/a.png")]


def test_a_message_of_the_ai_sdk_is_refused_with_what_to_pass() -> None:
    (sent,) = to_ui("Hi!")
    with pytest.raises(InputError, match="instead of a UIMessage, as useChat sends it, pass its id"):
        to_messages([sent])


def test_a_part_in_a_dictionary_is_copied() -> None:
    part = TextPart(text="hello")
    (message,) = to_messages([{"role": "user", "content": [part]}])
    (copied,) = message.parts
    assert isinstance(copied, TextPart)
    copied.text = "edited by a processor"
    assert part.text == "hello"


@pytest.mark.parametrize(
    ("part", "read"),
    [
        (
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,cG5n", "detail": "low"}},
            FilePart(media_type="image/png", data=b"png"),
        ),
        (
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,cGRm", "filename": "a.pdf"}},
            FilePart(media_type="application/pdf", data=b"pdf", name="a.pdf"),
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "bXAz", "format": "mp3"}},
            FilePart(media_type="audio/mpeg", data=b"mp3"),
        ),
        (
            {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}},
            FilePart(media_type="image/*", url="https://example.org/cat.png"),
        ),
    ],
)
def test_files_are_read_as_chat_completions_have_them(part: Any, read: FilePart) -> None:
    (out,) = to_messages({"role": "user", "content": [part]})
    assert out.parts == [read]
    (sent,) = to_openai(out)[0]["content"]
    assert to_messages({"role": "user", "content": [sent]})[0].parts == [read]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}},
        {"type": "input_audio", "input_audio": {"data": "?", "format": "mp3"}},
    ],
)
def test_bytes_that_are_not_base64_are_named(part: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="message 0: cannot decode the bytes of a file: data:"):
        to_messages({"role": "user", "content": [part]})


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"content": None}, ""),
        ({"content": None, "refusal": "I cannot."}, "I cannot."),
        ({"content": [{"type": "refusal", "refusal": "I cannot."}]}, "I cannot."),
        ({"refusal": None, "tool_calls": None}, ""),
    ],
)
def test_an_answer_without_content_is_read(answer: dict[str, Any], text: str) -> None:
    (out,) = to_messages({"role": "assistant", **answer})
    assert out.text == text


@pytest.mark.parametrize("arguments", ['{"city": "Ro', '["Rome"]'])
def test_arguments_that_a_model_wrote_wrongly_are_kept_as_text(arguments: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    (out,) = to_messages({"role": "assistant", "content": None, "tool_calls": [call]})
    assert out.tool_parts[0].args == {"arguments": arguments}


def test_a_result_in_parts_is_their_text() -> None:
    parts = [{"type": "text", "text": "18 °C"}, {"type": "text", "text": "sunny"}]
    (out,) = to_messages({"role": "tool", "tool_call_id": "c1", "content": parts})
    assert out.tool_parts[0].result == "18 °C\nsunny"


def test_a_message_is_copied_but_keeps_its_id() -> None:
    given = Message.user("hi", metadata={"a": 1})
    (out,) = to_messages(given)
    assert out == given
    assert isinstance(out.parts[0], TextPart)
    out.parts[0].text = "changed"
    out.metadata["b"] = 2
    assert (given.text, given.metadata) == ("hi", {"a": 1})


@pytest.mark.parametrize(
    "value",
    [
        *(None, 3, object(), [object()], [["x"]], {"role": "user"}),
        {"role": "assistant", "content": "x", "tool_calls": 3},
    ],
)
def test_everything_else_is_an_input_error(value: Any) -> None:
    with pytest.raises(InputError):
        to_messages(value)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            "cannot read the content part.*input_text",
        ),
        ({"type": "function_call", "call_id": "c", "name": "look"}, "cannot read an item of type 'function_call'"),
        (
            {"type": "function_call_output", "call_id": "c", "output": "a"},
            "cannot read an item of type 'function_call_output'",
        ),
    ],
)
def test_items_of_the_responses_api_are_refused_with_the_form_to_use(entry: Any, says: str) -> None:
    with pytest.raises(InputError, match=f"message 1: {says}.*use the form of chat completions: .*tool_calls"):
        to_messages([Message.user("hi"), entry])
