"""A user's program with a Pydantic AI agent, for the contract of the adapters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from pydantic_ai import (
    Agent,
    ModelMessage,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import RetryModelRequest, UnexpectedModelBehavior
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from diarist import Memory
from diarist.integrations.pydantic_ai import MemoryEvent, ObservationalMemory
from diarist.testing.adapter_conformance import (
    INSTRUCTIONS,
    TOOLS,
    WAIT,
    AdapterProgram,
    Script,
    SentMessage,
    SentRequest,
    look_up,
)

ENTRY_POINTS = ("run", "run_sync", "run_stream", "run_stream_events", "iter")


class Retry(AbstractCapability[Any]):
    """Calls the model again after a connection error."""

    async def on_model_request_error(self, ctx: Any, *, request_context: Any, error: Exception) -> ModelResponse:
        if isinstance(error, ConnectionError):
            raise RetryModelRequest from error
        raise error


class Program(AdapterProgram):
    def __init__(
        self,
        script: Script,
        *,
        memory: Memory | None,
        thread: str,
        resource: str,
        reject: str,
        retries: bool,
        server_state: str,
        **options: Any,
    ) -> None:
        super().__init__()
        self._script = script
        self.history: list[ModelMessage] = []
        self._thread = thread
        capabilities: list[Any] = [Retry()] if retries else []
        if memory is not None:
            capabilities.append(ObservationalMemory(memory, resource=resource, **options))
        self.agent = Agent(
            FunctionModel(self._answer, stream_function=self._stream),
            instructions=INSTRUCTIONS,
            capabilities=capabilities,
            model_settings={server_state: "auto"} if server_state else None,  # pyright: ignore[reportArgumentType]
        )
        for name in TOOLS:
            self.agent.tool_plain(lambda city, name=name: look_up(name, city), name=name)  # pyright: ignore
        if reject:

            @self.agent.output_validator
            def refuse(output: str) -> str:
                if reject in output:
                    raise UnexpectedModelBehavior("this answer is refused")
                return output

    async def _step(self, messages: Sequence[ModelMessage], info: AgentInfo) -> ModelResponse:
        request = SentRequest(
            system=[*([info.instructions] if info.instructions else []), *system_texts(messages)],
            messages=list(sent(messages)),
            tools=[tool.name for tool in info.function_tools],
        )
        self.requests.append(request)
        step = self._script(request)
        if step == WAIT:
            await asyncio.Event().wait()
        if isinstance(step, BaseException):
            raise step
        if isinstance(step, str):
            return ModelResponse([TextPart(step)])
        return ModelResponse([ToolCallPart(call.name, dict(call.args), call.id or "") for call in step])

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return await self._step(messages, info)

    async def _stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        response = await self._step(messages, info)
        for place, part in enumerate(response.parts):
            if isinstance(part, TextPart):
                yield part.content
            elif isinstance(part, ToolCallPart):
                yield {place: DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)}

    async def ask(self, text: str, *, entry: str = "") -> str:
        options: Any = {"message_history": self.history or None, "conversation_id": self._thread}
        match entry or "run":
            case "run_sync":
                result = await asyncio.to_thread(self._run_sync, text, options)
            case "run_stream":
                async with self.agent.run_stream(text, **options) as stream:
                    async for delta in stream.stream_text(delta=True):
                        self.shown.append(delta)
                    self.history, output = stream.all_messages(), await stream.get_output()
                return output
            case "run_stream_events":
                result: Any = None
                async with self.agent.run_stream_events(text, **options) as events:
                    async for event in events:
                        if not isinstance(event, MemoryEvent):
                            self.shown.append(repr(event))
                        result = getattr(event, "result", result)
            case "iter":
                async with self.agent.iter(text, **options) as run:
                    async for node in run:
                        self.shown.append(repr(node))
                result: Any = run.result
            case _:
                result = await self.agent.run(text, **options)
        self.history = result.all_messages()
        self.shown.append(repr(result.usage))
        return result.output

    def _run_sync(self, text: str, options: Any) -> Any:
        loop = asyncio.new_event_loop()  # the framework would leave one open in the thread
        asyncio.set_event_loop(loop)
        try:
            return self.agent.run_sync(text, **options)
        finally:
            loop.close()

    async def stored(self) -> list[SentMessage]:
        return list(sent(self.history))


def system_texts(messages: Sequence[ModelMessage]) -> list[str]:
    return [part.content for message in messages for part in message.parts if isinstance(part, SystemPromptPart)]


def sent(messages: Sequence[ModelMessage]) -> Iterator[SentMessage]:
    for message in messages:
        if isinstance(message, ModelResponse):
            calls = tuple(part.tool_call_id for part in message.parts if isinstance(part, ToolCallPart))
            yield SentMessage(role="assistant", text=message.text or "", calls=calls)
            continue
        for part in message.parts:
            if isinstance(part, ToolReturnPart):
                yield SentMessage(role="tool", text=part.model_response_str(), result_of=part.tool_call_id)
            elif isinstance(part, UserPromptPart):
                content = [part.content] if isinstance(part.content, str) else part.content
                yield SentMessage(role="user", text="\n\n".join(str(item) for item in content))
