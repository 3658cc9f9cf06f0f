"""An agent of Microsoft Agent Framework keeps a diary: its session is complete, and its prompts stay small.

Needs `agent-framework-core`. Prints::

    messages in the session: 24
    messages in the last prompt: ...
    the diary has: ...My cat is called Tiger.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from agent_framework import (
    Agent,
    AgentContext,
    AgentMiddleware,
    BaseChatClient,
    ChatContext,
    ChatMiddleware,
    ChatMiddlewareLayer,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
)
from agent_framework import Message as TheirMessage

from diarist import Memory, ObservationalMemoryConfig, ObservationConfig
from diarist.memory import Turn
from diarist.messages import Message, Part, TextPart, ToolPart
from diarist.storage import InMemoryStorage

current: ContextVar[tuple[Turn, list[Message]] | None] = ContextVar("current", default=None)


class DiaryTurn(AgentMiddleware):
    """Memory for one agent: a turn per run, in the thread of the session."""

    def __init__(self, memory: Memory, *, resource: str) -> None:
        self.memory, self.resource = memory, resource

    async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
        if context.stream or context.session is None:
            await call_next()
            return
        async with self.memory.turn(thread=context.session.session_id, resource=self.resource) as turn:
            kept: list[Message] = []
            token = current.set((turn, kept))
            try:
                await call_next()
            except BaseException:
                await turn.discard()
                raise
            finally:
                current.reset(token)
            await turn.commit(kept)


class DiaryView(ChatMiddleware):
    """Sends each request of the turn as memory wants it."""

    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        if (found := current.get()) is None:
            await call_next()
            return
        turn, kept = found
        given = list(context.messages)
        kept[:] = [read(message) for message in given]
        view = await turn.prompt(kept)
        system = [message for message in given if message.role == "system"]
        system += [TheirMessage("system", [text]) for text in view.system]
        context.messages = [*system, *view.arrange(given, make=write, note=with_note)]
        await call_next()
        if isinstance(context.result, ChatResponse):
            kept += [read(message) for message in context.result.messages]


def read(message: TheirMessage) -> Message:
    """Convert a message for memory."""
    parts = [part(content) for content in message.contents if content.type != "text_reasoning"]
    return Message(role=message.role, parts=parts)  # type: ignore[arg-type]


def part(content: Content) -> Part:
    match content.type:
        case "text":
            return TextPart(text=content.text or "")
        case "function_call":
            args = dict(content.parse_arguments() or {})
            return ToolPart(call_id=content.call_id or "", name=content.name or "", args=args)
        case "function_result":
            text = str(content.result)
            return ToolPart(call_id=content.call_id or "", name="", args={}, state="result", result=text)
        case _:
            return TextPart(text=f"[{content.type}]")


def write(message: Message) -> list[TheirMessage]:
    """Convert a message that only memory has. Its tool calls are left out."""
    return [TheirMessage(message.role, [message.text])] if message.text else []


def with_note(message: TheirMessage, note: str) -> TheirMessage:
    return TheirMessage(message.role, [note, *message.contents])


class Polite(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """In place of a real client, such as ``OpenAIChatClient``."""

    def __init__(self) -> None:
        super().__init__()
        self.prompts: list[list[TheirMessage]] = []

    async def _inner_get_response(
        self, *, messages: Sequence[TheirMessage], stream: bool, options: Mapping[str, Any], **rest: Any
    ) -> ChatResponse:
        self.prompts.append(list(messages))
        return ChatResponse(messages=[TheirMessage("assistant", ["I see. " * 10])])


async def main() -> None:
    observation = ObservationConfig(model="extractive", message_tokens=300)
    memory = Memory(
        storage=InMemoryStorage(),
        observational_memory=ObservationalMemoryConfig(observation=observation),
        await_background=True,
    )
    client = Polite()
    agent = Agent(client, "Be kind.", middleware=[DiaryTurn(memory, resource="ada"), DiaryView()])
    session = agent.create_session()
    for number in range(12):
        text = "My cat is called Tiger." if number == 0 else f"On day {number} we went for a long walk in the park."
        await agent.run(text, session=session)
    lines = "\n".join(message.text for message in client.prompts[-1] if message.role == "system").splitlines()
    print("messages in the session:", len(session.state["in_memory"]["messages"]))
    print("messages in the last prompt:", len([m for m in client.prompts[-1] if m.role != "system"]))
    print("the diary has:", next(line for line in lines if "Tiger" in line))


if __name__ == "__main__":
    asyncio.run(main())
