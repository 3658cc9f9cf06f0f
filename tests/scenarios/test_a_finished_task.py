"""A task that the Observer no longer sees is not in later prompts."""

from __future__ import annotations

from diarist import Agent, Memory, ObservationalMemoryConfig
from diarist.messages import Message
from diarist.storage import Storage
from diarist.testing import ScriptedModel

OPEN = """<diary>
- 🔴 User wants a refund of B-3
</diary>
<current-task>User wants a refund of B-3</current-task>
<suggested-response>Refund B-3</suggested-response>"""
DONE = """<diary>
- ✅ Assistant refunded B-3
</diary>
<current-task>none</current-task>
<suggested-response>None. [#1]</suggested-response>"""
UNSAID = "<diary>\n- ✅ Assistant refunded B-3\n</diary>"


async def prompts(storage: Storage, notes: list[str]) -> list[str]:
    """Return the text of the user message in each prompt, one after each answer of the Observer."""
    memory = Memory(storage=storage, observational_memory=ObservationalMemoryConfig(model=ScriptedModel(*notes)))
    model = ScriptedModel(lambda _: "Fine.")
    agent = Agent(model=model, memory=memory)
    for number in range(len(notes)):
        await memory.messages.save([Message.user(f"Batch {number}"), Message.assistant("Done.")], thread="t")
        await memory.diary.observe(thread="t")
        await agent.generate("And now?", thread="t")
    return [request.prompt.messages[-1].text for request in model.requests]


async def test_a_finished_task_is_not_mentioned_again(storage: Storage) -> None:
    first, second = await prompts(storage, [OPEN, DONE])
    assert "Current task: User wants a refund of B-3\nSuggested response: Refund B-3" in first
    assert "refund" not in second.casefold()


async def test_a_task_that_later_notes_do_not_mention_stays(storage: Storage) -> None:
    _, second = await prompts(storage, [OPEN, UNSAID])
    assert "Current task: User wants a refund of B-3" in second
