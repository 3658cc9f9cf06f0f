"""What the tests of working memory share."""

from __future__ import annotations

import re
from typing import Any

from diarist import Agent, Memory, ObservationalMemoryConfig, ObservationConfig, ReflectionConfig
from diarist.agent import AgentResult
from diarist.memory import WorkingMemoryConfig
from diarist.models.base import Model, ModelRequest
from diarist.storage import Storage
from diarist.testing import ToolCall
from tests.scenarios.kit import WordCounter, observer, reflector

TOOL = "update_working_memory"
TEMPLATE = "# User\n- **Name**:\n- **Likes**:"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0},
        "likes": {"type": "array", "items": {"type": "string"}},
        "home": {"type": "object", "properties": {"city": {"type": "string"}, "zip": {"type": "string"}}},
    },
    "required": ["name"],
    "additionalProperties": False,
}


def remembering(
    storage: Storage,
    *,
    observing: bool = False,
    observer_model: Model | None = None,
    memory_is_read_only: bool = False,
    **config: Any,
) -> Memory:
    """Memory that counts words, with working memory; ``observing`` at 100 words of messages."""
    if not {"template", "schema"} & config.keys():
        config["template"] = TEMPLATE
    diary = ObservationalMemoryConfig(
        observation=ObservationConfig(model=observer_model or observer(), message_tokens=100, buffer_tokens=False),
        reflection=ReflectionConfig(model=reflector()),
    )
    return Memory(
        storage=storage,
        working_memory=WorkingMemoryConfig(**config),
        observational_memory=diary if observing else False,
        token_counter=WordCounter(),
        read_only=memory_is_read_only,
    )


def update(memory: Any) -> list[Any]:
    """What a model does to update it."""
    return [ToolCall(TOOL, {"memory": memory})]


def shown(request: ModelRequest) -> str:
    """The working memory that the system text of a prompt has."""
    system = "\n".join(message.text for message in request.prompt if message.role == "system")
    (found,) = re.findall(r"<working-memory>\n(.*?)\n</working-memory>", system, re.DOTALL)
    return found


def newest(request: ModelRequest) -> str:
    """The last working memory that a prompt tells of: in its system text, or in a memory note."""
    return re.findall(r"<working-memory>\n(.*?)\n</working-memory>", request.text, re.DOTALL)[-1]


async def say(agent: Agent, text: str = "hello", *, thread: str = "t", resource: str = "ada") -> AgentResult[Any]:
    return await agent.generate(text, thread=thread, resource=resource)
