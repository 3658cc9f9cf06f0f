"""Working memory that the Observer keeps: along with its notes, compare-and-set, and never by nonsense."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from diarist import Agent, Memory, ObservationalMemoryConfig, Processor
from diarist.exceptions import ConfigError
from diarist.memory import WorkingMemoryConfig
from diarist.models.base import ModelRequest
from diarist.processors import ProcessOutputResultArgs
from diarist.storage import Storage
from diarist.testing import Reply, ScriptedModel, ToolCall
from tests.scenarios.kit import answering, words
from tests.scenarios.working_kit import SCHEMA, TEMPLATE, newest, remembering, say

_numbers = count(1)


def notes() -> str:
    return f"<diary>\nDate: 2026-03-02\n- 🟡 note {next(_numbers)}\n</diary>\n<current-task>\nnone\n</current-task>\n"


def writing(*sections: str | Callable[[ModelRequest], str]) -> ScriptedModel:
    """An Observer that answers with these about working memory, one after the other; then without."""
    left = list(sections)

    def answer(request: ModelRequest) -> str:
        section = left.pop(0) if left else ""
        said = section(request) if callable(section) else section
        return f"{notes()}<working-memory>\n{said}\n</working-memory>" if said else notes()

    return ScriptedModel(answer, name="observer")


async def observed(memory: Memory, turns: int = 1, *, first: int = 0) -> ScriptedModel:
    """So many turns that are observed, one after the other; returns who answered."""
    model = answering()
    agent = Agent(model=model, memory=memory)
    for number in range(first, first + turns):
        await say(agent, words(f"turn-{number}", 30))
        await memory.diary.observe(thread="t")
    return model


async def test_it_is_written_with_the_notes(storage: Storage) -> None:
    observer = writing("# User\n- **Name**: Ada", "", "# User\n- **Name**: Ada\n- **Likes**: tea")
    memory = remembering(storage, observing=True, observer_model=observer, kept_by="observer")
    model = await observed(memory, 4)
    assert await memory.working.get(resource="ada") == "# User\n- **Name**: Ada\n- **Likes**: tea"
    assert [tool.name for tool in model.requests[0].tools] == []
    assert newest(model.requests[-1]) == "# User\n- **Name**: Ada\n- **Likes**: tea"
    assert TEMPLATE in observer.requests[0].text
    assert "<working-memory>\n# User\n- **Name**: Ada\n</working-memory>" in observer.requests[1].text
    diary = (await memory.diary.get(thread="t")).text
    assert "tea" not in diary, "it is no part of the notes"


@pytest.mark.parametrize("tag", ["working-memory", "working_memory", 'working-memory lang="en"', "WorkingMemory"])
async def test_it_is_found_behind_another_tag_and_under_like_names(storage: Storage, tag: str) -> None:
    closing = f"</{tag.split()[0]}>"
    observer = ScriptedModel(
        lambda _: f"{notes().rstrip()}<{tag}>\n# User\n- **Name**: Ada\n{closing}", name="observer"
    )
    memory = remembering(storage, observing=True, observer_model=observer, kept_by="observer")
    await observed(memory)
    assert await memory.working.get(resource="ada") == "# User\n- **Name**: Ada"
    assert "Name" not in (await memory.diary.get(thread="t")).text


async def test_with_a_schema_it_is_merged(storage: Storage) -> None:
    observer = writing('{"name": "Ada", "age": 36}', '```json\n{"likes": ["tea"], "age": null}\n```')
    memory = remembering(storage, observing=True, observer_model=observer, kept_by="observer", schema=SCHEMA)
    await observed(memory, 2)
    assert await memory.working.get(resource="ada") == {"name": "Ada", "likes": ["tea"]}


async def test_a_section_that_was_cut_off_changes_nothing(storage: Storage) -> None:
    known = "# User\n- **Name**: Ada\n- **Allergies**: nuts"
    whole = f"{notes()}<working-memory>\n{known}\n</working-memory>"
    half = Reply(text=f"{notes()}<working-memory>\n# User\n- **Al", finish_reason="length")
    observer = ScriptedModel(lambda _: whole if len(observer.requests) == 1 else half, name="observer")
    memory = remembering(storage, observing=True, observer_model=observer, kept_by="observer")
    await observed(memory, 2)
    assert len(observer.requests) > 1
    assert await memory.working.get(resource="ada") == known
    assert "broke off" not in (await memory.diary.get(thread="t")).text, "the notes are whole"


@pytest.mark.parametrize(
    "nonsense",
    ["none", "(unchanged)", TEMPLATE, "The user seems nice.", "```\n```"],
)
async def test_nonsense_changes_nothing(storage: Storage, nonsense: str) -> None:
    observer = writing("# User\n- **Name**: Ada", nonsense)
    memory = remembering(storage, observing=True, observer_model=observer, kept_by="observer")
    await observed(memory, 2)
    assert await memory.working.get(resource="ada") == "# User\n- **Name**: Ada"
    assert len((await memory.diary.get(thread="t")).active) == 2, "the notes are as good as without"


@pytest.mark.parametrize("nonsense", ["{", "[1]", '{"age": "old"}', "Ada"])
async def test_nonsense_for_a_schema_changes_nothing(storage: Storage, nonsense: str) -> None:
    observer = writing('{"name": "Ada"}', nonsense)
    memory = remembering(storage, observing=True, observer_model=observer, kept_by="observer", schema=SCHEMA)
    await observed(memory, 2)
    assert await memory.working.get(resource="ada") == {"name": "Ada"}


async def test_a_failing_observer_changes_nothing(storage: Storage) -> None:
    down = False

    def answer(_: ModelRequest) -> str:
        if down:
            raise RuntimeError("down")
        return f"{notes()}<working-memory>\n# User\n- **Name**: Ada\n</working-memory>"

    memory = remembering(storage, observing=True, observer_model=ScriptedModel(answer), kept_by="observer")
    await observed(memory)
    down = True
    with pytest.raises(RuntimeError):
        await observed(memory, first=1)
    assert await memory.working.get(resource="ada") == "# User\n- **Name**: Ada"


async def test_concurrent_changes_are_not_overwritten(storage: Storage) -> None:
    async def meanwhile(_: ModelRequest) -> str:
        await memory.working.update("# User\n- **Name**: Grace", resource="ada")
        return f"{notes()}<working-memory>\n# User\n- **Name**: Ada\n</working-memory>"

    memory = remembering(storage, observing=True, observer_model=ScriptedModel(meanwhile), kept_by="observer")
    await observed(memory)
    assert await memory.working.get(resource="ada") == "# User\n- **Name**: Grace"


@pytest.mark.parametrize("blocked", [True, False])
async def test_it_counts_with_the_run_that_was_observed(storage: Storage, blocked: bool) -> None:
    """A long tool loop is observed while its run is live."""

    class Judge(Processor[Any]):
        def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
            if blocked:
                args.abort("no")

    def look() -> str:
        """Look."""
        return words("found", 20)

    states = [f"# User\n- **Name**: Ada\n- **Likes**: {number}" for number in range(20)]
    memory = remembering(storage, observing=True, observer_model=writing(*states), kept_by="observer")
    seen: list[Any] = []
    waiting: list[int] = []

    async def step(_: ModelRequest) -> Any:
        waiting.append(len((await storage.get_working_memory("resource:ada")).updates))
        seen.append(await memory.working.get(resource="ada"))
        return [words("step", 20), ToolCall("look", {})]

    loop: list[Any] = [step for _ in range(12)]
    agent = Agent(
        model=ScriptedModel(*loop, "done"), memory=memory, tools=[look], max_steps=20, output_processors=[Judge()]
    )
    await say(agent, "go")
    await memory.settled()
    assert set(seen) == {""}
    assert max(waiting) > 1, "several updates must have been waiting for its end"
    stored = await storage.get_working_memory("resource:ada")
    assert stored.updates == ()
    assert stored.text == "" if blocked else stored.text.startswith("# User\n- **Name**: Ada\n- **Likes**: ")


@pytest.mark.parametrize(
    ("diary", "working", "why"),
    [
        (False, {}, "needs an Observer"),
        (ObservationalMemoryConfig(model="extractive"), {}, "extractive"),
        (
            ObservationalMemoryConfig(scope="resource", model=answering()),
            {"scope": "thread"},
            "several threads",
        ),
    ],
)
async def test_what_the_observer_cannot_do_is_refused(
    storage: Storage, diary: bool | ObservationalMemoryConfig, working: dict[str, Any], why: str
) -> None:
    config = WorkingMemoryConfig(kept_by="observer", **working)
    with pytest.raises(ConfigError, match=why):
        Memory(storage=storage, working_memory=config, observational_memory=diary)
