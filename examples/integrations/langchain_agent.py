"""An agent of LangChain keeps a diary: its state is complete, and its prompts stay small. Needs `diarist[langchain]`.

Prints::

    messages in the state: 24
    messages in the last prompt: 5
    the diary has: ... User stated: My cat is called Tiger.
"""

import asyncio
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver

from diarist import Memory, ObservationalMemoryConfig, ObservationConfig
from diarist.integrations.langchain import ObservationalMemoryMiddleware
from diarist.storage import InMemoryStorage

prompts: list[list[BaseMessage]] = []


class Polite(BaseChatModel):
    """In place of a real model, such as ``"openai:gpt-5-mini"``."""

    @property
    def _llm_type(self) -> str:
        return "polite"

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        prompts.append(messages)
        return ChatResult(generations=[ChatGeneration(message=AIMessage("I see. " * 10))])


async def main() -> None:
    observation = ObservationConfig(model="extractive", message_tokens=300)
    memory = Memory(
        storage=InMemoryStorage(),
        observational_memory=ObservationalMemoryConfig(observation=observation),
        await_background=True,
    )
    agent = create_agent(
        Polite(),
        middleware=[ObservationalMemoryMiddleware(memory, resource="ada")],
        checkpointer=InMemorySaver(),
    )
    config: Any = {"configurable": {"thread_id": "pets"}}
    state: dict[str, Any] = {}
    for number in range(12):
        text = "My cat is called Tiger." if number == 0 else f"On day {number} we went for a long walk in the park."
        state = await agent.ainvoke({"messages": text}, config)
    system, *sent = prompts[-1]
    print("messages in the state:", len(state["messages"]))
    print("messages in the last prompt:", len(sent))
    print("the diary has:", next(line for line in system.text.splitlines() if "Tiger" in line).lstrip("- 🔴🟡🟢"))


asyncio.run(main())
