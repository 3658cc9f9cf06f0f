"""All memories at once, in one file: the messages, the diary, a profile of the user, and recall by meaning.

Prints::

    profile, kept by the agent: name: Ada
    diary instead of the guide: True
    raw, the newest message: I also need a hotel near the station.
    recalled from another thread: My sister Grace lives in Rome, near the river.
    title: A trip to Rome
"""

import asyncio

from diarist import Agent, Memory, Message, ObservationalMemoryConfig, ObservationConfig
from diarist.memory import SemanticRecallConfig, TitleConfig, WorkingMemoryConfig
from diarist.storage import SQLiteStorage
from diarist.testing import ScriptedModel, ToolCall

GUIDE = "Rome has churches, fountains and cafés. " * 60


def line_with(text: str, words: str) -> str:
    return next((line for line in text.splitlines() if words in line), "nothing")


async def main() -> None:
    memory = Memory(
        storage=SQLiteStorage("trip.db"),
        observational_memory=ObservationalMemoryConfig(
            model="extractive",  # offline; a real model writes a better diary
            observation=ObservationConfig(message_tokens=200),
        ),
        working_memory=WorkingMemoryConfig(template="name:"),
        semantic_recall=SemanticRecallConfig(top_k=1, message_range=0, threshold=0.3),
        embedder="wordllama",  # offline; or "openai/text-embedding-3-small"
        generate_title=TitleConfig(model=ScriptedModel(lambda request: "A trip to Rome")),
        await_background=True,  # so that this script always prints the same
    )
    last_week = [Message.user("My sister Grace lives in Rome, near the river.")]
    await memory.messages.save(last_week, thread="family", resource="ada")
    await memory.settled()

    model = ScriptedModel(
        ToolCall("update_working_memory", {"memory": "name: Ada"}), "Noted, Ada.", "A fine guide.", "I'll look.", "Yes."
    )
    async with Agent(model=model, memory=memory) as agent:
        for said in (
            "I'm Ada. My flight to Rome is AZ 204 on 12 June 2026.",
            f"Here is a travel guide: {GUIDE}",
            "I also need a hotel near the station.",
            "Whom do I know in Rome, where does my sister live?",
        ):
            await agent.generate(said, thread="trip", resource="ada")

    prompt = model.requests[-1].text
    print("profile, kept by the agent:", await memory.working.get(resource="ada"))
    print("diary instead of the guide:", "AZ 204" in prompt and GUIDE not in prompt)
    print("raw, the newest message:", line_with(prompt, "hotel"))
    print("recalled from another thread:", line_with(prompt, "Grace").partition("User: ")[2])
    print("title:", (await memory.threads.get("trip")).title)
    await memory.close()


asyncio.run(main())
