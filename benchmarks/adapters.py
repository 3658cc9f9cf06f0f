"""CPU that an adapter adds to a model call of a framework, at 1,000 stored messages.

Run it beside the framework, such as ``.venv-integrations/langchain-pinned/bin/python benchmarks/adapters.py langchain``.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

from diarist import Memory, ObservationalMemoryConfig
from diarist.storage import InMemoryStorage

MESSAGES, TURNS = 1000, 40

Ask = Callable[[str], Awaitable[int]]
"""Runs a turn and returns the number of its model calls."""


async def langchain(memory: Memory | None) -> Ask:
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
            answer = AIMessage("gladly " * 20)
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
        old += [HumanMessage(f"question {number} " * 5, id=f"u{number}"), AIMessage("gladly " * 20, id=f"a{number}")]
    await agent.aupdate_state(config, {"messages": old})

    async def ask(text: str) -> int:
        await agent.ainvoke({"messages": text}, config)
        return 2

    return ask


FRAMEWORKS: dict[str, Callable[[Memory | None], Awaitable[Ask]]] = {"langchain": langchain}


async def main(name: str) -> None:
    config = ObservationalMemoryConfig(model="extractive")
    memory = Memory(storage=InMemoryStorage(), observational_memory=config, await_background=True)
    ours, bare = await FRAMEWORKS[name](memory), await FRAMEWORKS[name](None)
    for ask in (ours, bare):
        await ask("warm up")
        await ask("warm up")
    gc.collect()
    gc.freeze()

    async def cost(ask: Ask, number: int) -> float:
        start = time.process_time()
        calls = await ask(f"question {number}")
        return (time.process_time() - start) / calls * 1000

    costs = [(await cost(ours, number), await cost(bare, number)) for number in range(TURNS)]
    over = [one - other for one, other in costs]
    print(f"{name}: bare {median(b for _, b in costs):.1f} ms, with memory {median(o for o, _ in costs):.1f} ms")
    print(f"{name}: {median(over):.1f} ms of CPU over the bare loop per model call (median of {TURNS} turns)")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "langchain"))
