"""CPU that an adapter adds to a model call of a framework, at 1,000 stored messages.

Once with messages of about 90 tokens, of which the diary covers most; and once with short ones, none of which has left
the prompt: the most that a turn can have to do.

Run it beside the framework, such as
``.venv-integrations/langchain-pinned/bin/python benchmarks/adapters.py langchain``. Elsewhere it measures nothing.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from diarist import Memory, ObservationalMemoryConfig
from diarist.storage import SQLiteStorage

MESSAGES, TURNS = 1000, 40

Ask = Callable[[str], Awaitable[int]]
"""Runs a turn and returns the number of its model calls."""


async def langchain(memory: Memory | None, length: int) -> Ask:
    """A turn of an agent of ``create_agent`` with a checkpointer: a tool call, then an answer."""
    from langchain.agents import create_agent
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
    from langchain_core.outputs import ChatGeneration, ChatResult
    from langgraph.checkpoint.memory import InMemorySaver

    from diarist.integrations.langchain import ObservationalMemoryMiddleware

    class Model(BaseChatModel):
        @property
        def _llm_type(self) -> str:
            return "bench"

        def bind_tools(self, tools: Any, **options: Any) -> Any:
            return self

        def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
            answer = AIMessage("gladly " * 20 * length)
            if isinstance(messages[-1], HumanMessage):
                call: Any = {"type": "tool_call", "id": f"c{time.monotonic_ns()}", "name": "look", "args": {"at": "x"}}
                answer = AIMessage("", tool_calls=[call])
            return ChatResult(generations=[ChatGeneration(message=answer)])

        async def _agenerate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
            return self._generate(messages)

    def look(at: str) -> str:
        """Look at something."""
        return "found " * 20

    middleware: Any = [] if memory is None else [ObservationalMemoryMiddleware(memory)]
    agent: Any = create_agent(Model(), [look], middleware=middleware, checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    old: list[BaseMessage] = []
    for number in range(MESSAGES // 2):
        old += [
            HumanMessage(f"question {number} " * 5 * length, id=f"u{number}"),
            AIMessage("gladly " * 20 * length, id=f"a{number}"),
        ]
    await agent.aupdate_state(config, {"messages": old})

    async def ask(text: str) -> int:
        await agent.ainvoke({"messages": text}, config)
        return 2

    return ask


async def pydantic_ai(memory: Memory | None, length: int) -> Ask:
    """A turn of an agent that gets its whole history in each run: a tool call, then an answer."""
    from pydantic_ai import Agent, ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    from diarist.integrations.pydantic_ai import ObservationalMemory

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if isinstance(messages[-1].parts[-1], UserPromptPart):
            return ModelResponse([ToolCallPart("look", {"at": "x"})])
        return ModelResponse([TextPart("gladly " * 20 * length)])

    def look(at: str) -> str:
        return "found " * 20

    capabilities: Any = [] if memory is None else [ObservationalMemory(memory, thread="t")]
    agent = Agent(FunctionModel(answer), tools=[look], capabilities=capabilities)
    history: list[ModelMessage] = []
    for number in range(MESSAGES // 2):
        history.append(ModelRequest([UserPromptPart(f"question {number} " * 5 * length)], run_id=f"run-{number}"))
        history.append(ModelResponse([TextPart("gladly " * 20 * length)], run_id=f"run-{number}"))

    async def ask(text: str) -> int:
        nonlocal history
        history = (await agent.run(text, message_history=history)).all_messages()
        return 2

    return ask


async def agents(memory: Memory | None, length: int) -> Ask:
    """A turn of ``Runner.run`` of OpenAI's Agents SDK with a session of the user's: a tool call, then an answer."""
    sdk: Any = import_module("agents")
    testing: Any = import_module("agents.testing")
    adapter: Any = import_module("diarist.integrations.openai_agents")
    sdk.set_tracing_disabled(True)

    class Bench(sdk.Model):
        async def get_response(self, *, input: Any, **options: Any) -> Any:
            name = f"id-{time.monotonic_ns()}"
            answer = testing.assistant_message("gladly " * 20 * length, item_id=name)
            if input[-1].get("role") == "user":
                answer = testing.function_call("look", {"at": "x"}, call_id=name, item_id=f"fc-{name}")
            return sdk.ModelResponse(output=[answer], usage=sdk.Usage(), response_id=None)

        def stream_response(self, *args: Any, **options: Any) -> Any:
            raise NotImplementedError

    @sdk.function_tool
    def look(at: str) -> str:
        """Look at something."""
        return "found " * 20

    agent, session = sdk.Agent(name="Bench", model=Bench(), tools=[look]), sdk.SQLiteSession("t")
    old: list[Any] = []
    for number in range(MESSAGES // 2):
        old.append({"role": "user", "content": f"question {number} " * 5 * length})
        content: list[Any] = [{"type": "output_text", "text": "gladly " * 20 * length, "annotations": []}]
        old.append({"type": "message", "role": "assistant", "id": f"a{number}", "content": content})
    await session.add_items(old)
    more: dict[str, Any] = {"session": session}
    if memory is not None:
        om = adapter.ObservationalMemory(memory, thread="t", session=session)
        more = {"session": om.session, "run_config": om.run_config(), "hooks": om.hooks}

    async def ask(text: str) -> int:
        await sdk.Runner.run(agent, text, **more)
        return 2

    return ask


FRAMEWORKS: dict[str, Callable[[Memory | None, int], Awaitable[Ask]]] = {
    "agents": agents,
    "langchain": langchain,
    "pydantic_ai": pydantic_ai,
}


async def main(name: str, folder: Path, length: int) -> None:
    config = ObservationalMemoryConfig(model="extractive")
    storage = SQLiteStorage(str(folder / "memory.db"))
    memory = Memory(storage=storage, observational_memory=config, await_background=True)
    ours, bare = await FRAMEWORKS[name](memory, length), await FRAMEWORKS[name](None, length)
    for ask in (ours, bare):
        for _ in range(5):
            await ask("warm up")
    gc.collect()
    gc.freeze()

    async def cpu(ask: Ask, number: int) -> float:
        start = time.process_time()
        calls = await ask(f"question {number}")
        return (time.process_time() - start) / calls * 1000

    costs = [(await cpu(ours, number), await cpu(bare, number)) for number in range(TURNS)]
    over = [one - other for one, other in costs]
    what = "short messages" if length == 1 else "usual messages"
    bare_cost, cost = median(b for _, b in costs), median(o for o, _ in costs)
    print(f"{name}, {what}: bare {bare_cost:.1f} ms, with memory {cost:.1f} ms, {median(over):+.1f} ms a model call")


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else "langchain"
    if find_spec(chosen) is None:
        name = "openai_agents" if chosen == "agents" else chosen
        print(f"{chosen} is not installed here: run `make test-integrations NAME={name}`, then this with its Python")
    else:
        for length in (4, 1):
            with TemporaryDirectory() as folder:
                asyncio.run(main(chosen, Path(folder), length))
