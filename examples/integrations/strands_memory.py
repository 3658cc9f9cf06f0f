"""An agent of Strands keeps a diary: its messages are complete, and its prompts stay small. Needs `strands-agents`.

Prints::

    messages of the agent: 24
    messages in the last prompt: ...
    the diary has: ...My cat is called Tiger.
"""

import asyncio
from collections.abc import AsyncIterable
from typing import Any

from strands import Agent
from strands.agent.conversation_manager import NullConversationManager
from strands.hooks import AfterInvocationEvent, AfterModelCallEvent, BeforeInvocationEvent
from strands.middleware import InvokeModelContext, InvokeModelStage
from strands.models import Model
from strands.types.content import ContentBlock
from strands.types.content import Message as StrandsMessage
from strands.types.exceptions import ContextWindowOverflowException

from diarist import Memory, ObservationalMemoryConfig, ObservationConfig
from diarist.memory import Turn
from diarist.messages import Message, Part, TextPart, ToolPart
from diarist.storage import InMemoryStorage


class Diary:
    """Memory for one agent of Strands: a turn per invocation, and a view per model call."""

    def __init__(self, agent: Agent, memory: Memory, *, thread: str, resource: str) -> None:
        self.memory, self.thread, self.resource = memory, thread, resource
        self.turn: Turn
        agent.add_hook(self.begin, BeforeInvocationEvent)
        agent.add_middleware(InvokeModelStage.Input, self.prepare)
        agent.add_hook(self.make_room, AfterModelCallEvent)
        agent.add_hook(self.end, AfterInvocationEvent)

    async def begin(self, event: BeforeInvocationEvent) -> None:
        self.turn = self.memory.turn(thread=self.thread, resource=self.resource)

    async def prepare(self, context: InvokeModelContext) -> InvokeModelContext:
        given = context.messages
        view = await self.turn.prompt([read(message) for message in given])
        system = context.system_prompt or []
        blocks = [{"text": system}] if isinstance(system, str) else list(system)
        return context.replace(
            messages=view.arrange(given, make=write, note=with_note),
            system_prompt=[*blocks, *({"text": text} for text in view.system)],
        )

    async def make_room(self, event: AfterModelCallEvent) -> None:
        error = event.exception
        if isinstance(error, ContextWindowOverflowException) and await self.turn.overflowed(error):
            event.retry = True

    async def end(self, event: AfterInvocationEvent) -> None:
        await self.turn.commit([read(message) for message in event.agent.messages])


def read(message: StrandsMessage) -> Message:
    """Convert a message for memory, with its own id."""
    role = "tool" if any("toolResult" in block for block in message["content"]) else message["role"]
    return Message(id=message["tracking_id"], role=role, parts=[part(block) for block in message["content"]])


def part(block: ContentBlock) -> Part:
    match block:
        case {"text": text}:
            return TextPart(text=text)
        case {"toolUse": call}:
            return ToolPart(call_id=call["toolUseId"], name=call["name"], args=call["input"])
        case {"toolResult": result}:
            text = "\n".join(str(item.get("text", item.get("json", "[file]"))) for item in result["content"])
            state = "error" if result["status"] == "error" else "result"
            return ToolPart(call_id=result["toolUseId"], name="", args={}, state=state, result=text)
        case _:
            return TextPart(text=f"[{next(iter(block))}]")


def write(message: Message) -> list[StrandsMessage]:
    """Convert a message that only memory has. Its tool calls are left out."""
    return [{"role": message.role, "content": [{"text": message.text}]}] if message.text else []


def with_note(message: StrandsMessage, note: str) -> StrandsMessage:
    return {**message, "content": [{"text": note}, *message["content"]]}


class Polite(Model):
    """In place of a real model, such as ``OpenAIModel(model_id="gpt-5-mini")``."""

    def __init__(self) -> None:
        self.prompts: list[tuple[str, list[StrandsMessage]]] = []

    def update_config(self, **config: Any) -> None: ...

    def get_config(self) -> Any:
        return {}

    def structured_output(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError

    async def stream(
        self, messages: list[StrandsMessage], tool_specs: Any = None, system_prompt: str | None = None, **options: Any
    ) -> AsyncIterable[Any]:
        self.prompts.append((system_prompt or "", messages))
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": "I see. " * 10}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


async def main() -> None:
    observation = ObservationConfig(model="extractive", message_tokens=300)
    memory = Memory(
        storage=InMemoryStorage(),
        observational_memory=ObservationalMemoryConfig(observation=observation),
        await_background=True,
    )
    model = Polite()
    agent = Agent(model, callback_handler=None, conversation_manager=NullConversationManager())
    Diary(agent, memory, thread="pets", resource="ada")
    for number in range(12):
        text = "My cat is called Tiger." if number == 0 else f"On day {number} we went for a long walk in the park."
        await agent.invoke_async(text)
    system, sent = model.prompts[-1]
    print("messages of the agent:", len(agent.messages))
    print("messages in the last prompt:", len(sent))
    print("the diary has:", next(line for line in system.splitlines() if "Tiger" in line))


if __name__ == "__main__":
    asyncio.run(main())
