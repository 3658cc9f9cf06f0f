"""A blocked result holds nothing of what was blocked, wherever on the way it happened."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, Memory, Processor
from diarist.storage import SQLiteStorage
from diarist.testing import ScriptedModel, ToolCall
from diarist.tools import Tool
from tests.agent.kit import run_both, types


class AtTheEnd(Processor[Any]):
    """Blocks when the answer is complete: at the last chunk, or in the last hook."""

    def __init__(self, where: str) -> None:
        self.where = where

    def process_output_stream(self, args: Any) -> Any:
        if args.part.type == "finish" and self.where == "finish":
            args.abort("no", retry=True)
        return args.part

    def process_output_result(self, args: Any) -> None:
        if self.where == "result":
            args.abort("no")


def work() -> str:
    """Work."""
    return "done"


@pytest.mark.parametrize("where", ["finish", "result"])
async def test_blocked_at_the_very_end(where: str, tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "memory.db")

    def make() -> Agent:
        model = ScriptedModel(["Working.", ToolCall("work")], "secret")
        memory = Memory(storage=storage)
        return Agent(model=model, tools=[work], memory=memory, processors=[AtTheEnd(where)], max_processor_retries=0)

    result, chunks = await run_both(make, thread="t")
    assert types(chunks)[-1] == "tripwire"
    assert "finish" not in types(chunks)
    assert (result.stopped_by, result.finish_reason, result.text, result.output) == ("tripwire", "other", "", None)
    assert (result.messages, result.conversation, result.pending) == ([], [], [])
    assert [step.text for step in result.steps] == ["Working."], "the step before it did happen"
    assert "secret" not in repr(asdict(result))
    assert await storage.get_thread("t") is None
    await storage.close()


async def test_a_call_that_waited_is_gone_with_its_run() -> None:
    model = ScriptedModel(ToolCall("locate"))
    result = await Agent(model=model, tools=[Tool(name="locate")], processors=[AtTheEnd("finish")]).generate("hi")
    assert (result.stopped_by, result.pending) == ("tripwire", [])
