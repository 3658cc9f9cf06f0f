"""The program of a user of OpenAI's Agents SDK, for the contract of adapters."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from agents import (
    Agent,
    FunctionTool,
    GuardrailFunctionOutput,
    ModelRetrySettings,
    ModelSettings,
    RunConfig,
    Runner,
    Session,
    Span,
    Trace,
    TracingProcessor,
    function_tool,
    output_guardrail,
    set_trace_processors,
)
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from openai.types.responses import ResponseOutputItem

from diarist import Memory
from diarist.integrations.openai_agents import ObservationalMemory
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


class Traces(TracingProcessor):
    """Keeps the spans of one process. In place of the SDK's own, which needs a key."""

    def __init__(self) -> None:
        self.spans: list[str] = []

    def on_trace_start(self, trace: Trace) -> None:
        self.spans.append(str(trace.export()))

    def on_trace_end(self, trace: Trace) -> None: ...

    def on_span_start(self, span: Span[Any]) -> None: ...

    def on_span_end(self, span: Span[Any]) -> None:
        self.spans.append(str(span.export()))

    def shutdown(self) -> None: ...

    def force_flush(self) -> None: ...


TRACES = Traces()
set_trace_processors([TRACES])


class FakeModel(ScriptedModel):
    """Asks a script at each call."""

    def __init__(self, script: Script, requests: list[SentRequest]) -> None:
        super().__init__(emit_traces=True)
        self._script, self._requests = script, requests

    async def get_response(self, *args: Any, **named: Any) -> Any:
        self.enqueue(ModelStep.respond(self._answer))
        return await super().get_response(*args, **named)

    def stream_response(self, *args: Any, **named: Any) -> Any:
        self.enqueue(ModelStep.respond(self._answer))
        return super().stream_response(*args, **named)

    async def _answer(self, call: Any) -> list[ResponseOutputItem]:
        given = [{"role": "user", "content": call.input}] if isinstance(call.input, str) else call.input
        system = [call.system_instructions] if call.system_instructions else []
        request = SentRequest(system=system, messages=sent(given), tools=[tool.name for tool in call.tools])
        self._requests.append(request)
        step = self._script(request)
        if isinstance(step, BaseException):
            raise step
        if step == WAIT:
            await asyncio.Event().wait()
        if isinstance(step, str):
            return [assistant_message(step, item_id=f"msg_{uuid4().hex}x")]
        return [function_call(one.name, one.args, call_id=one.id, item_id=f"fc_{uuid4().hex}") for one in step]


def sent(items: Sequence[Any]) -> list[SentMessage]:
    """Return items as messages: those of one response are one."""
    out: list[SentMessage] = []
    joins = False
    for item in items:
        kind = item.get("role") or item["type"]
        if kind == "function_call_output":
            out.append(SentMessage(role="tool", text=item["output"], result_of=item["call_id"]))
        elif kind == "function_call":
            if not joins:
                out.append(SentMessage(role="assistant"))
            out[-1] = replace(out[-1], calls=(*out[-1].calls, item["call_id"]))
        else:
            out.append(SentMessage(role=kind, text=text_of(item["content"])))
        joins = kind in ("assistant", "function_call")
    return out


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else "\n\n".join(block["text"] for block in content)


def tool_named(name: str) -> FunctionTool:
    def look(city: str) -> str:
        return look_up(name, city)

    return function_tool(look, name_override=name, description_override=f"Looks up {name}.")


class Program(AdapterProgram):
    """One conversation.

    Args:
        session: The user's own session. None: the one of the adapter; without an adapter, a list.
    """

    def __init__(
        self,
        script: Script,
        memory: Memory | None,
        *,
        reject: str = "",
        retries: bool = False,
        server_state: str = "",
        session: Session | None = None,
        **options: Any,
    ) -> None:
        super().__init__()

        @output_guardrail
        async def guard(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
            refused = bool(reject) and reject in str(output)
            return GuardrailFunctionOutput(output_info=None, tripwire_triggered=refused)

        settings = ModelSettings(retry=ModelRetrySettings(max_retries=1, policy=lambda _: True))
        self.agent = Agent(
            name="Planner",
            instructions=INSTRUCTIONS,
            model=FakeModel(script, self.requests),
            model_settings=settings if retries else ModelSettings(),
            tools=[tool_named(name) for name in TOOLS],
            output_guardrails=[guard] if reject else [],
        )
        self.session: Any = session or ListSession()
        self.options: dict[str, Any] = {"run_config": RunConfig()}
        if memory is not None:
            self.om = ObservationalMemory(memory, session=session, **options)
            self.session = self.om.session
            self.options = {"run_config": self.om.run_config(), "hooks": self.om.hooks}
        if server_state:  # the SDK itself refuses it beside a session
            self.options[server_state] = True if server_state.startswith("auto") else "id"
        else:
            self.options["session"] = self.session

    async def ask(self, text: str, *, entry: str = "run") -> str:
        before = len(TRACES.spans)
        try:
            return await self._ask(text, entry)
        finally:
            self.shown += TRACES.spans[before:]

    async def _ask(self, text: str, entry: str) -> str:
        if entry == "run_sync":
            return await asyncio.to_thread(self._ask_sync, text)
        if entry == "run":
            return str((await Runner.run(self.agent, text, **self.options)).final_output)
        result = Runner.run_streamed(self.agent, text, **self.options)
        async for event in result.stream_events():
            self.shown.append(str(event))
        return str(result.final_output)

    def _ask_sync(self, text: str) -> str:
        asyncio.set_event_loop(loop := asyncio.new_event_loop())  # the SDK would leave one of its own open
        try:
            return str(Runner.run_sync(self.agent, text, **self.options).final_output)
        finally:
            loop.close()
            asyncio.set_event_loop(None)

    async def stored(self) -> list[SentMessage]:
        return sent(await self.session.get_items())


class ListSession:
    """The simplest session."""

    session_id = "bare"
    session_settings = None

    def __init__(self) -> None:
        self.items: list[Any] = []

    async def get_items(self, limit: int | None = None) -> list[Any]:
        return self.items[-limit:] if limit else list(self.items)

    async def add_items(self, items: list[Any]) -> None:
        self.items += items

    async def pop_item(self) -> Any:
        return self.items.pop() if self.items else None

    async def clear_session(self) -> None:
        self.items.clear()
