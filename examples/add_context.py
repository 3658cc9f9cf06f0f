"""What a search found is sent with the question, and not stored with the conversation.

Prints::

    the model saw: ['When can I send it back?', 'From the handbook: Refunds within 30 days.']
    stored: ['When can I send it back?', 'Within 30 days.']
"""

import asyncio
from typing import Any

from diarist import Agent, Memory, Message, Processor
from diarist.processors import ProcessInputArgs
from diarist.storage import InMemoryStorage
from diarist.testing import ScriptedModel


class Handbook(Processor[Any]):
    """Adds the paragraphs of a handbook whose key words are in the question."""

    def __init__(self, paragraphs: dict[str, str]) -> None:
        self.paragraphs = paragraphs

    def process_input(self, args: ProcessInputArgs[Any]) -> None:
        question = args.messages[-1].text
        for words, paragraph in self.paragraphs.items():
            if any(word in question for word in words.split()):
                args.message_list.add(Message.user(f"From the handbook: {paragraph}"), "context")


async def main() -> None:
    model = ScriptedModel("Within 30 days.")
    memory = Memory(storage=InMemoryStorage())
    handbook = Handbook({"refund send back": "Refunds within 30 days.", "opening hours": "Open from 9 to 5."})
    agent = Agent(model=model, memory=memory, processors=[handbook])
    await agent.generate("When can I send it back?", thread="t")
    print("the model saw:", [message.text for message in model.requests[0].prompt.messages])
    print("stored:", [message.text for message in await memory.messages.list(thread="t")])


asyncio.run(main())
