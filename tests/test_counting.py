"""Tokens of a message, part by part."""

from __future__ import annotations

import struct
import threading

import pytest

from diarist import Agent, Memory, Message, tool
from diarist.counting import count_parts, message_tokens
from diarist.messages import DataPart, FilePart, Part, ReasoningPart, SentBlock, SourcePart, TextPart, ToolPart
from diarist.storage import InMemoryStorage
from diarist.testing import ScriptedModel, ToolCall
from diarist.tokens import count_image, default_counter


class WordCounter:
    name = "words"

    def count(self, text: str) -> int:
        return len(text.split())


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        (TextPart(text="one two three"), 3),
        (ReasoningPart(text="let me think"), 3),
        (ToolPart(call_id="1", name="look", args={}), 2),
        (ToolPart(call_id="1", name="look", args={"at": "sea"}, state="result", result="blue and wide"), 5),
        (ToolPart(call_id="1", name="look", args={}, state="error", result="no such place"), 5),
        (ToolPart(call_id="1", name="look", args={}, state="result", result={"colour": "dark blue"}), 4),
        (SourcePart(url="https://example.com", title="A title of a page"), 0),
        (DataPart(type="data-x", data={"text": "never sent to a model"}), 0),
    ],
)
def test_parts(part: Part, tokens: int) -> None:
    assert count_parts(Message(role="assistant", parts=[part]), WordCounter()) == (tokens,)


def test_images_by_their_size() -> None:
    png = b"\x89PNG\r\n\x1a\n" + b"\x00" * 8 + struct.pack(">II", 640, 480)
    gif = b"GIF89a" + struct.pack("<HH", 640, 480)
    for data, kind in ((png, "image/png"), (gif, "image/gif")):
        message = Message(role="user", parts=[FilePart(media_type=kind, data=data)])
        assert count_parts(message, WordCounter()) == (count_image(640, 480),)
    unknown = Message(role="user", parts=[FilePart(media_type="image/png", url="https://example.com/a.png")])
    assert count_parts(unknown, WordCounter()) == (count_image(None, None),)


def test_a_message_counts_with_what_was_sent_along() -> None:
    message = Message.user("one two three")
    assert message_tokens(message) == 0
    message.part_tokens = count_parts(message, WordCounter())
    assert message_tokens(message) == 3
    message.sent = SentBlock(text="today is Monday", tokens=3)
    assert message_tokens(message) == 6


def test_text_counts_exactly() -> None:
    message = Message.user("The quick brown fox jumps over the lazy dog.")
    assert count_parts(message, default_counter()) == (10,)


class ThreadCounter(WordCounter):
    """Remembers the threads in which long texts were counted."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def count(self, text: str) -> int:
        if len(text) > 100_000:
            self.threads.append(threading.current_thread())
        return super().count(text)


async def test_a_long_text_is_counted_beside_the_event_loop() -> None:
    counter, text = ThreadCounter(), "x" * 1_000_000
    memory = Memory(storage=InMemoryStorage(), token_counter=counter)

    @tool
    def read() -> str:
        """Read the file."""
        return text

    agent = Agent(model=ScriptedModel(ToolCall("read", {}), text), tools=[read], memory=memory)
    await agent.generate(text, thread="t")
    await memory.messages.save(Message.user(text, id="m1"), thread="t")
    await memory.messages.update("m1", thread="t", text=text + "!")
    lines = [line async for line in memory.threads.export("t")]
    await memory.threads.delete("t")
    await memory.threads.import_all(lines)
    assert len(counter.threads) >= 9
    assert threading.current_thread() not in counter.threads
