"""A run of OpenAI's Agents SDK keeps a diary: its session is complete, and its prompts stay small. Needs
`diarist[openai-agents]`.

Prints::

    items in the session: 24
    items in the last prompt: ...
    the diary has: ... User stated: My cat is called Tiger.
"""

import asyncio

from agents import Agent, Runner, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message

from diarist import Memory, ObservationalMemoryConfig, ObservationConfig
from diarist.integrations.openai_agents import ObservationalMemory
from diarist.storage import InMemoryStorage

set_tracing_disabled(True)  # tracing needs a key


async def main() -> None:
    observation = ObservationConfig(model="extractive", message_tokens=300)
    memory = Memory(
        storage=InMemoryStorage(),
        observational_memory=ObservationalMemoryConfig(observation=observation),
        await_background=True,
    )
    # In place of a real model, such as "gpt-5-mini".
    model = ScriptedModel([[assistant_message("I see. " * 10, item_id=f"msg-{number}")] for number in range(12)])
    agent = Agent(name="Friend", instructions="Be polite.", model=model)
    om = ObservationalMemory(memory, thread="pets", resource="ada")
    for number in range(12):
        text = "My cat is called Tiger." if number == 0 else f"On day {number} we went for a long walk in the park."
        await Runner.run(agent, text, session=om.session, run_config=om.run_config(), hooks=om.hooks)
    last = model.calls[-1]
    diary = (last.system_instructions or "").splitlines()
    print("items in the session:", len(await om.session.get_items()))
    print("items in the last prompt:", len(last.input))
    print("the diary has:", next(line for line in diary if "Tiger" in line).lstrip("- 🔴🟡🟢"))


asyncio.run(main())
