"""A fake chat model of LangChain, and a program with an agent of ``create_agent``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelRetryMiddleware
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import Field

from diarist import Memory
from diarist.integrations.langchain import ObservationalMemoryMiddleware
from diarist.testing.adapter_conformance import (
    INSTRUCTIONS,
    WAIT,
    AdapterProgram,
    Script,
    SentMessage,
    SentRequest,
    Step,
    look_up,
)

ENTRY_POINTS = ("ainvoke", "invoke", "astream", "stream", "astream_events")


class FakeChat(BaseChatModel):
    """Answers as the script says, and keeps what it was sent."""

    script: Any
    sent: list[list[BaseMessage]] = Field(default_factory=list)
    requests: list[SentRequest] = Field(default_factory=list)
    tools: list[str] = Field(default_factory=list)
    model_kwargs: dict[str, Any] = Field(default_factory=dict)
    use_previous_response_id: bool = False

    @property
    def _llm_type(self) -> str:
        return "fake"

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> FakeChat:
        self.tools = [each.name for each in tools]
        return self

    def _step(self, messages: list[BaseMessage]) -> Step:
        system = [message.text for message in messages if isinstance(message, SystemMessage)]
        request = SentRequest(system=system, messages=neutral(messages), tools=self.tools)
        self.sent.append(list(messages))
        self.requests.append(request)
        step = self.script(request)
        if isinstance(step, BaseException):
            raise step
        return step

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> ChatResult:
        return result(self._step(messages))

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> ChatResult:
        step = self._step(messages)
        if step == WAIT:
            await asyncio.Event().wait()
        return result(step)


def result(step: Step | AIMessage) -> ChatResult:
    if isinstance(step, AIMessage):
        message = step
    elif isinstance(step, str):
        message = AIMessage(step)
    else:
        calls = [
            {"type": "tool_call", "id": call.id, "name": call.name, "args": call.args} for call in cast(list[Any], step)
        ]
        message = AIMessage("", tool_calls=calls)
    return ChatResult(generations=[ChatGeneration(message=message)])


def neutral(messages: Sequence[BaseMessage]) -> list[SentMessage]:
    out: list[SentMessage] = []
    for message in messages:
        match message:
            case SystemMessage():
                pass
            case AIMessage():
                calls = tuple(call["id"] or "" for call in message.tool_calls)
                out.append(SentMessage(role="assistant", text=message.text, calls=calls))
            case ToolMessage():
                out.append(SentMessage(role="tool", text=message.text, result_of=message.tool_call_id))
            case _:
                out.append(SentMessage(role="user", text=message.text))
    return out


@tool
def weather(city: str) -> str:
    """Say the weather."""
    return look_up("weather", city)


@tool
def hotels(city: str) -> str:
    """Find hotels."""
    return look_up("hotels", city)


@tool
def trains(city: str) -> str:
    """Find trains."""
    return look_up("trains", city)


class RefusedError(Exception):
    """A guard refused an answer."""


class Guard(AgentMiddleware):
    """Refuses answers with a word."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self._word = word

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return self._checked(handler(request))

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return self._checked(await handler(request))

    def _checked(self, response: Any) -> Any:
        if self._word in response.result[0].text:
            raise RefusedError
        return response


class Watcher(BaseCallbackHandler):
    """Keeps what a program's callbacks see, without the prompts of its own model, which have the diary."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_chat_model_start(self, serialized: Any, messages: Any, **options: Any) -> None:
        if not messages[0][0].text.startswith(INSTRUCTIONS):
            self.seen.append(messages)

    def on_llm_end(self, response: Any, **options: Any) -> None:
        self.seen.append(response)

    def on_chain_end(self, outputs: Any, **options: Any) -> None:
        self.seen.append(outputs)


class Program(AdapterProgram):
    """A conversation with an agent of ``create_agent`` with a checkpointer."""

    def __init__(
        self,
        script: Script,
        memory: Memory | None,
        *,
        thread: str = "trip",
        resource: str | None = "ada",
        reject: str = "",
        retries: bool = False,
        server_state: str = "",
        tools: Sequence[Any] = (weather, hotels, trains),
        more: Sequence[AgentMiddleware[Any, Any, Any]] = (),
        **options: Any,
    ) -> None:
        self.watcher = Watcher()
        super().__init__()
        self.model = FakeChat(script=script)
        self.requests = self.model.requests
        if server_state == "use_previous_response_id":
            self.model.use_previous_response_id = True
        elif server_state:
            self.model.model_kwargs[server_state] = "x"
        middleware: list[AgentMiddleware[Any, Any, Any]] = list(more)
        if memory is not None:
            self.middleware = ObservationalMemoryMiddleware(memory, resource=resource, **options)
            middleware.insert(0, self.middleware)
        if retries:
            middleware.insert(0, ModelRetryMiddleware(retry_on=(ConnectionError,), initial_delay=0, on_failure="error"))
        if reject:
            middleware.append(Guard(reject))
        self.agent: Any = create_agent(
            self.model,
            list(tools),
            system_prompt=INSTRUCTIONS,
            middleware=middleware,
            checkpointer=InMemorySaver(),
        )
        self.config: Any = {"configurable": {"thread_id": thread}, "callbacks": [self.watcher]}

    @property
    def shown(self) -> list[str]:
        return [str(each) for each in self.watcher.seen]

    @shown.setter
    def shown(self, value: list[str]) -> None:
        self.watcher.seen = list(value)

    async def ask(self, text: str, *, entry: str = "ainvoke") -> str:
        return (await self.run({"messages": [{"role": "user", "content": text}]}, entry=entry))[-1].text

    async def run(self, given: Any, *, entry: str = "ainvoke") -> list[BaseMessage]:
        """Run the agent and return all messages."""
        agent, config = self.agent, self.config
        modes = ["messages", "updates"]
        match entry:
            case "invoke":
                await asyncio.to_thread(agent.invoke, given, config)
            case "astream":
                self.watcher.seen.extend([item async for item in agent.astream(given, config, stream_mode=modes)])
            case "stream":
                items = await asyncio.to_thread(lambda: list(agent.stream(given, config, stream_mode=modes)))
                self.watcher.seen.extend(items)
            case "astream_events":
                async for event in agent.astream_events(given, config, version="v2"):
                    if event["event"].startswith("on_chat_model") and INSTRUCTIONS in str(event["data"].get("input")):
                        event["data"].pop("input")
                    self.watcher.seen.append(event)
            case _:
                await agent.ainvoke(given, config)
        return (await agent.aget_state(config)).values["messages"]

    async def stored(self) -> list[SentMessage]:
        return neutral((await self.agent.aget_state(self.config)).values["messages"])
