"""An agent of Pydantic AI with a diary: its history stays complete, and the model gets the diary instead.

Prints::

    messages in the history: 40
    messages in the last request: 9
    in the diary: ...My allergy is to peanuts.
"""

import asyncio

from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from diarist import Memory, ObservationalMemoryConfig, ObservationConfig
from diarist.integrations.pydantic_ai import ObservationalMemory
from diarist.storage import InMemoryStorage

requests: list[tuple[list[ModelMessage], AgentInfo]] = []


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    requests.append((messages, info))
    return ModelResponse([TextPart("Noted. " + "Here are some more ideas for your trip. " * 5)])


async def main() -> None:
    memory = Memory(
        storage=InMemoryStorage(),
        observational_memory=ObservationalMemoryConfig(
            model="extractive", observation=ObservationConfig(message_tokens=600)
        ),
        await_background=True,
    )
    agent = Agent(
        FunctionModel(answer),
        instructions="You plan trips.",
        capabilities=[ObservationalMemory(memory, resource="ada")],
    )
    history: list[ModelMessage] = []
    for number in range(20):
        text = "My allergy is to peanuts." if number == 0 else f"Plan day {number} of my trip to Rome, please."
        result = await agent.run(text, message_history=history, conversation_id="trip")
        history = result.all_messages()
    messages, info = requests[-1]
    print("messages in the history:", len(history))
    print("messages in the last request:", len(messages))
    noted = next(line for line in (info.instructions or "").splitlines() if "peanuts" in line)
    print("in the diary:", noted)


asyncio.run(main())
