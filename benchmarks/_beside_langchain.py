"""Agents of LangChain for ``beside_frameworks.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from _beside import INSTRUCTIONS, RECENT, TOOLS, Build, Recorder, look_up, observational_memory
from _conversation import count
from langchain.agents import create_agent
from langchain.agents.middleware import ClearToolUsesEdit, ContextEditingMiddleware, SummarizationMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver

from diarist.integrations.langchain import ObservationalMemoryMiddleware
from diarist.testing.adapter_conformance import SentMessage


class Fake(BaseChatModel):
    reply: Any

    @property
    def _llm_type(self) -> str:
        return "fake"

    def bind_tools(self, tools: Any, **options: Any) -> Fake:
        return self

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.reply(messages))])


def sent(messages: Sequence[BaseMessage]) -> list[SentMessage]:
    out: list[SentMessage] = []
    for message in messages:
        match message:
            case AIMessage():
                calls = tuple(call["id"] or "" for call in message.tool_calls)
                out.append(SentMessage(role="assistant", text=message.text, calls=calls))
            case ToolMessage():
                out.append(SentMessage(role="tool", text=message.text, result_of=message.tool_call_id))
            case SystemMessage():
                pass
            case _:
                out.append(SentMessage(role="user", text=message.text))
    return out


class Program:
    def __init__(self, recorder: Recorder, *middleware: Any) -> None:
        def reply(messages: list[BaseMessage]) -> AIMessage:
            system = [message.text for message in messages if isinstance(message, SystemMessage)]
            step = recorder.step(system, sent(messages))
            if isinstance(step, str):
                return AIMessage(step)
            calls = [
                {"type": "tool_call", "id": call.id, "name": call.tool, "args": {"city": call.city}} for call in step
            ]
            return AIMessage("", tool_calls=calls)

        self.agent: Any = create_agent(
            Fake(reply=reply),
            [tool(name) for name in TOOLS],
            system_prompt=INSTRUCTIONS,
            middleware=middleware,
            checkpointer=InMemorySaver(),
        )
        self.config: Any = {"configurable": {"thread_id": "trip"}}

    async def ask(self, text: str) -> str:
        result = await self.agent.ainvoke({"messages": [{"role": "user", "content": text}]}, self.config)
        return result["messages"][-1].text

    async def stored(self) -> list[SentMessage]:
        return sent((await self.agent.aget_state(self.config)).values["messages"])


def tool(name: str) -> StructuredTool:
    def look(city: str) -> str:
        return look_up(name, city)

    return StructuredTool.from_function(look, name=name, description=f"Looks up {name}.")


def tokens_of(messages: Any, **options: Any) -> int:
    """Count as we do, so that the threshold is the same."""
    return sum(count(message.text) for message in messages)


def summarized(**options: Any) -> Build:
    def build(recorder: Recorder, tokens: int) -> Program:
        keep = {"keep": ("tokens", int(RECENT * tokens))} if "trim_tokens_to_summarize" in options else {}
        summarizer = Fake(reply=lambda messages: AIMessage(recorder.summary(messages[-1].text)))
        middleware = SummarizationMiddleware(
            summarizer, trigger=("tokens", tokens), token_counter=tokens_of, **keep, **options
        )
        return Program(recorder, middleware)

    return build


def cleared(recorder: Recorder, tokens: int) -> Program:
    edits = [ClearToolUsesEdit(trigger=tokens)]
    return Program(recorder, ContextEditingMiddleware(edits=edits))


def ours(recorder: Recorder, tokens: int) -> Program:
    return Program(recorder, ObservationalMemoryMiddleware(observational_memory(recorder, tokens), resource="ada"))


WAYS: dict[str, Callable[[Recorder, int], Program]] = {
    "full history": lambda recorder, tokens: Program(recorder),
    "`ContextEditingMiddleware`": cleared,
    "`SummarizationMiddleware`, its defaults": summarized(),
    "`SummarizationMiddleware`, summarizing all": summarized(trim_tokens_to_summarize=None),
    "observational memory": ours,
}
