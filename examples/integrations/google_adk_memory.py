"""An agent of Google ADK keeps a diary: its session is complete, and its prompts stay small. Needs `google-adk`.

Prints::

    events in the session: 24
    messages in the last prompt: ...
    the diary has: ...My cat is called Tiger.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence

from google.adk.agents import LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.apps import App
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner
from google.adk.sessions import Session
from google.genai import types

from diarist import Memory, ObservationalMemoryConfig, ObservationConfig
from diarist.memory import Turn
from diarist.messages import Message, Part, TextPart, ToolPart
from diarist.storage import InMemoryStorage


class DiaryPlugin(BasePlugin):
    """Memory for one agent of an app: a turn per invocation. A session is a thread, and its user owns the diary."""

    def __init__(self, memory: Memory, *, agent: str) -> None:
        super().__init__(name="diary")
        self.memory, self.agent = memory, agent
        self.open: dict[str, tuple[str, Turn, list[types.Content]]] = {}

    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        if callback_context.agent_name != self.agent:
            return
        thread, invocation = thread_of(callback_context.session), callback_context.invocation_id
        if thread in self.open and self.open[thread][0] != invocation:  # it was cancelled
            await self.end(thread, failed=True)
        if thread not in self.open:
            turn = self.memory.turn(thread=thread, resource=callback_context.user_id)
            self.open[thread] = invocation, turn, []
        _, turn, contents = self.open[thread]
        contents[:] = given = llm_request.contents
        view = await turn.prompt(read(given))
        llm_request.contents = view.arrange(given, make=write, note=with_note)
        if view.system:
            llm_request.append_instructions(view.system)

    async def after_model_callback(self, *, callback_context: CallbackContext, llm_response: LlmResponse) -> None:
        found = self.open.get(thread_of(callback_context.session))
        if found and callback_context.agent_name == self.agent and llm_response.content and not llm_response.partial:
            found[2].append(llm_response.content)

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        await self.end(thread_of(invocation_context.session), failed=False)

    async def on_run_error_callback(self, *, invocation_context: InvocationContext, error: Exception) -> None:
        await self.end(thread_of(invocation_context.session), failed=True)

    async def end(self, thread: str, *, failed: bool) -> None:
        if found := self.open.pop(thread, None):
            _, turn, contents = found
            await (turn.discard() if failed else turn.commit(read(contents)))


def thread_of(session: Session) -> str:
    return f"{session.app_name}/{session.user_id}/{session.id}"


def read(contents: Sequence[types.Content]) -> list[Message]:
    """Convert contents for memory. Calls have no ids in requests, so each gets its number."""
    numbers: Counter[str] = Counter()
    messages: list[Message] = []
    for content in contents:
        parts = [part(found, numbers) for found in content.parts or [] if not found.thought]
        results = any(found.function_response for found in content.parts or [])
        role = "tool" if results else "assistant" if content.role == "model" else "user"
        messages.append(Message(role=role, parts=parts))
    return messages


def part(found: types.Part, numbers: Counter[str]) -> Part:
    if found.text is not None:
        return TextPart(text=found.text)
    if call := found.function_call:
        return ToolPart(call_id=numbered("call", call.name, numbers), name=call.name or "", args=call.args or {})
    if result := found.function_response:
        call_id = numbered("result", result.name, numbers)
        return ToolPart(call_id=call_id, name=result.name or "", args={}, state="result", result=result.response)
    return TextPart(text=f"[{next(iter(found.model_dump(exclude_none=True)), 'empty')}]")


def numbered(kind: str, name: str | None, numbers: Counter[str]) -> str:
    numbers[f"{kind} {name}"] += 1
    return f"{name}-{numbers[f'{kind} {name}']}"


def write(message: Message) -> list[types.Content]:
    """Convert a message that only memory has. Its tool calls are left out."""
    role = "model" if message.role == "assistant" else "user"
    return [types.Content(role=role, parts=[types.Part(text=message.text)])] if message.text else []


def with_note(content: types.Content, note: str) -> types.Content:
    return types.Content(role=content.role, parts=[types.Part(text=note), *(content.parts or [])])


class Polite(BaseLlm):
    """In place of a real model, such as ``model="gemini-2.5-flash"``."""

    model: str = "polite"
    requests: list[LlmRequest] = []  # noqa: RUF012 - pydantic copies it

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.requests.append(llm_request)
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="I see. " * 10)]))


async def main() -> None:
    observation = ObservationConfig(model="extractive", message_tokens=300)
    memory = Memory(
        storage=InMemoryStorage(),
        observational_memory=ObservationalMemoryConfig(observation=observation),
        await_background=True,
    )
    model = Polite()
    app = App(
        name="pets",
        root_agent=LlmAgent(name="friend", model=model, instruction="Be kind."),
        plugins=[DiaryPlugin(memory, agent="friend")],
    )
    runner = InMemoryRunner(app=app)
    whose = {"user_id": "ada", "session_id": "cats"}
    await runner.session_service.create_session(app_name="pets", **whose)
    for number in range(12):
        text = "My cat is called Tiger." if number == 0 else f"On day {number} we went for a long walk in the park."
        message = types.Content(role="user", parts=[types.Part(text=text)])
        async for _ in runner.run_async(**whose, new_message=message):
            pass
    session = await runner.session_service.get_session(app_name="pets", **whose)
    lines = str(model.requests[-1].config.system_instruction).splitlines()
    print("events in the session:", len(session.events) if session else 0)
    print("messages in the last prompt:", len(model.requests[-1].contents))
    print("the diary has:", next(line for line in lines if "Tiger" in line))


if __name__ == "__main__":
    asyncio.run(main())
