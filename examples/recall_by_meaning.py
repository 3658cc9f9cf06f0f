"""What was said in one conversation stands beside the question in another one that means something like it.

Prints::

    recalled: - User: My plane to Italy leaves at seven in the morning.
    the compiler is left out: True
    found by meaning: My plane to Italy leaves at seven in the morning.
    forgotten: 1 message, 1 vector
    recalled afterwards: nothing
"""

import asyncio

from diarist import Agent, Memory, Message
from diarist.memory import SemanticRecallConfig
from diarist.storage import InMemoryStorage
from diarist.testing import ScriptedModel


def recalled(model: ScriptedModel) -> str:
    """The line of the memory note about the plane, without its date."""
    lines = [line for line in model.requests[-1].text.splitlines() if line.startswith("- ") and "plane" in line]
    return f"- {lines[0].partition(' ')[2][17:]}" if lines else "nothing"


async def main() -> None:
    memory = Memory(
        storage=InMemoryStorage(),
        semantic_recall=SemanticRecallConfig(top_k=1, message_range=0, threshold=0.3),
        embedder="wordllama",  # offline; or "openai/text-embedding-3-small"
    )
    said = [
        Message.user("My plane to Italy leaves at seven in the morning.", id="plane"),
        Message.user("The compiler reports an error in line 12.", id="compiler"),
    ]
    await memory.messages.save(said, thread="monday", resource="ada")
    await memory.settled()  # embedding goes on in the background

    model = ScriptedModel("At seven.", "I don't know.")
    agent = Agent(model=model, memory=memory)
    await agent.generate("When is my flight to Rome?", thread="tuesday", resource="ada")
    print("recalled:", recalled(model))
    print("the compiler is left out:", "compiler" not in model.requests[-1].text)

    page = await memory.recall("an early departure", thread="monday", limit=1)
    print("found by meaning:", page.items[0].message.text)

    receipt = await memory.forget(message_ids=["plane"], thread="monday")
    print(f"forgotten: {len(receipt.message_ids)} message, {receipt.vectors} vector")
    await agent.generate("When is my flight to Rome?", thread="wednesday", resource="ada")
    print("recalled afterwards:", recalled(model))
    await memory.close()


asyncio.run(main())
