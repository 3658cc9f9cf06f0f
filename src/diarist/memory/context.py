"""Reads the system texts and messages that memory adds to a prompt, without starting a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from diarist.memory.access import Access
from diarist.memory.history import HistoryProcessor
from diarist.memory.rows import seq_of
from diarist.memory.working.processor import WorkingMemoryProcessor
from diarist.memory.working.rendering import without_earlier_updates
from diarist.messages import Message, Prompt, PromptMessage, TextPart
from diarist.prompting import build_prompt
from diarist.storage.records import Thread


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryContext:
    """The part of a thread's next prompt that comes from memory, in the form in which the model gets it.

    Attributes:
        system: Texts of the system messages, in order: working memory, then the diary. They follow the agent's
            instructions.
        messages: The messages of the thread, without system messages. A stored message includes its memory note; a
            tool call and its result are two messages.
    """

    system: list[str]
    messages: list[PromptMessage]

    def __repr__(self) -> str:
        return f"MemoryContext({len(self.system)} system texts, {len(self.messages)} messages)"

    @property
    def text(self) -> str:
        """Return everything as text, with a ``[role]`` heading per message."""
        system = [PromptMessage(role="system", parts=[TextPart(text=text)]) for text in self.system]
        return Prompt(messages=[*system, *self.messages]).text


async def read_context(
    access: Access, thread: Thread, *, working: Sequence[WorkingMemoryProcessor], history: HistoryProcessor
) -> MemoryContext:
    """Return the context of a thread. Writes nothing and calls no model.

    ``history`` selects the messages if there is no observational memory. Raises StorageError.
    """
    blocks: list[str] = []
    if access.config is None:
        window: list[Message] = await history.window(thread.id)
    else:
        from diarist.memory.observational.engine import Engine

        no_role: Any = None  # reading calls neither the Observer nor the Reflector, so neither needs a model
        engine = Engine(
            storage=access.storage, config=access.config, observer=no_role, reflector=no_role, counter=access.counter
        )
        memory = await engine.open_read_only(thread.id, thread.resource_id)
        rows = memory.window.rows
        question = Message.user("", seq=seq_of(rows[-1]) + 1 if rows else 1)
        memory.window.add([question])  # notes of the turn before it may be due
        await memory.preview({question.id})
        window = [message for message in memory.window.messages() if message.id != question.id]
        blocks = memory.window.blocks()
    messages = build_prompt((), window).messages
    for processor in working:
        blocks.insert(0, await processor.system_block(thread.id, thread.resource_id, window))
        messages = without_earlier_updates(messages, ())
    return MemoryContext(system=blocks, messages=messages)
