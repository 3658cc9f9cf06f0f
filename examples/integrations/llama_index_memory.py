"""An agent of LlamaIndex keeps a diary: its store is complete, and its prompts stay small. Needs `llama-index-core`.

Prints::

    messages in the chat store: 24
    messages in the last prompt: ...
    the diary has: ...My cat is called Tiger.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import TextBlock, ThinkingBlock, ToolCallBlock
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.llms import ChatMessage
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory.types import BaseChatStoreMemory

from diarist import Memory, ObservationalMemoryConfig, ObservationConfig
from diarist.memory import Turn
from diarist.messages import Message, Part, TextPart, ToolPart
from diarist.storage import InMemoryStorage


class DiaryMemory(BaseChatStoreMemory):
    """A memory of LlamaIndex: its chat store has every message, and agents read what diarist selects of them."""

    _turn: Turn | None = PrivateAttr(None)

    @classmethod
    def from_defaults(cls, **options: Any) -> "DiaryMemory":
        return cls(**options)

    @asynccontextmanager
    async def turn(self, memory: Memory, *, thread: str, resource: str) -> AsyncIterator[None]:
        self._turn = turn = memory.turn(thread=thread, resource=resource)
        async with turn:
            try:
                yield
            except BaseException:
                await turn.discard()  # the chat store has only the question, and the next turn gives it again
                raise
            finally:
                self._turn = None
            await turn.commit([read(message) for message in await self.aget_all()])

    async def aget(self, input: str | None = None, **options: Any) -> list[ChatMessage]:
        given = await self.aget_all()
        if self._turn is None:
            return given
        view = await self._turn.prompt([read(message) for message in given])
        system = [ChatMessage(role="system", content=text) for text in view.system]
        return system + view.arrange(given, make=write, note=with_note)


def read(message: ChatMessage) -> Message:
    """Convert a message for memory."""
    role: Any = message.role.value
    if role == "tool":
        call_id = message.additional_kwargs["tool_call_id"]
        result = ToolPart(call_id=call_id, name="", args={}, state="result", result=message.content or "")
        return Message(role="tool", parts=[result])
    return Message(role=role, parts=[part(block) for block in message.blocks if not isinstance(block, ThinkingBlock)])


def part(block: Any) -> Part:
    match block:
        case TextBlock():
            return TextPart(text=block.text)
        case ToolCallBlock(tool_kwargs=dict(args)):
            return ToolPart(call_id=block.tool_call_id or "", name=block.tool_name, args=args)
        case _:
            return TextPart(text=f"[{block.block_type}]")


def write(message: Message) -> list[ChatMessage]:
    """Convert a message that only memory has. Its tool calls are left out."""
    return [ChatMessage(role=message.role, content=message.text)] if message.text else []


def with_note(message: ChatMessage, note: str) -> ChatMessage:
    return message.model_copy(update={"blocks": [TextBlock(text=note), *message.blocks]})


prompts: list[list[ChatMessage]] = []


def answer(messages: list[ChatMessage], **options: Any) -> ChatMessage:
    prompts.append(messages)
    return ChatMessage(role="assistant", content="I see. " * 10)


async def main() -> None:
    observation = ObservationConfig(model="extractive", message_tokens=300)
    memory = Memory(
        storage=InMemoryStorage(),
        observational_memory=ObservationalMemoryConfig(observation=observation),
        await_background=True,
    )
    model = MockFunctionCallingLLM(response_generator=answer)  # in place of OpenAI(model="gpt-5-mini")
    agent = FunctionAgent(llm=model, system_prompt="Be kind.", streaming=False)
    history = DiaryMemory()
    for number in range(12):
        text = "My cat is called Tiger." if number == 0 else f"On day {number} we went for a long walk in the park."
        async with history.turn(memory, thread="pets", resource="ada"):
            await agent.run(user_msg=text, memory=history)
    sent = [message for message in prompts[-1] if message.role != "system"]
    lines = "\n".join(message.content or "" for message in prompts[-1] if message.role == "system").splitlines()
    print("messages in the chat store:", len(history.get_all()))
    print("messages in the last prompt:", len(sent))
    print("the diary has:", next(line for line in lines if "Tiger" in line))


if __name__ == "__main__":
    asyncio.run(main())
