"""Values show themselves shortly in a shell, and as tables in a notebook."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import diarist
from diarist import Agent, Memory, Message, ObservationalMemoryConfig, ObservationConfig, Processor, tool
from diarist.messages import FilePart, ReasoningPart, TextPart, ToolPart
from diarist.models import ModelEntry, resolve
from diarist.processors import RegexFilter, Sequence
from diarist.storage import InMemoryStorage, SQLiteStorage
from diarist.storage.postgres import PostgresStorage
from diarist.testing import ScriptedModel, ToolCall

HOSTILE = '<script>alert("&")</script>\ud800'


@tool
def get_weather(city: str) -> str:
    """Weather in a city."""
    return f"18 °C in {city}"


def weather_agent(city: str = "Rome", **more: Any) -> Agent:
    model = ScriptedModel(ToolCall("get_weather", {"city": city}), f"It will be warm in {city}.")
    return Agent(model=model, tools=[get_weather], **more)


def test_dir_shows_the_public_names_and_loads_none_of_them() -> None:
    code = "import sys, diarist; print(*dir(diarist)); print('diarist.agent' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names, loaded = done.stdout.splitlines()
    assert (set(names.split()), loaded) == (set(diarist.__all__), "False")


def test_a_message_shows_role_and_content() -> None:
    assert repr(Message.user("Hi there", id="m1")) == "Message('user', 'Hi there', id='m1')"
    parts = [
        ReasoningPart(text="Hm."),
        TextPart(text="Look: " + "a" * 100),
        FilePart(media_type="image/png", data=b"x" * 1000),
        ToolPart(call_id="c", name="get_weather", args={"city": "Rome"}, state="result", result="18 °C"),
        ToolPart(call_id="d", name="book", args={}),
    ]
    shown = repr(Message(id="m2", role="assistant", parts=parts))
    assert shown == (
        f"Message('assistant', <reasoning>, 'Look: {'a' * 72}…, <image/png>, get_weather(city='Rome') -> '18 °C', "
        "book(), id='m2')"
    )


async def test_a_result_shows_its_answer_and_its_end() -> None:
    result = await weather_agent().generate("Weather?")
    assert repr(result) == (
        f"AgentResult(text='It will be warm in Rome.', stopped_by='answer', steps=2, "
        f"tokens={result.usage.total_tokens}, run_id={result.run_id!r})"
    )
    typed = await Agent(model=ScriptedModel("[1, 2]")).generate("Numbers?", output_type=list[int])
    assert "output=[1, 2], stopped_by='answer'" in repr(typed)

    class Block(Processor[Any]):
        def process_input(self, args: Any) -> None:
            args.abort("not today")

    blocked = await weather_agent(processors=[Block()]).generate("Weather?")
    assert "text='', stopped_by='tripwire', reason='not today', steps=0" in repr(blocked)


def test_agent_and_memory_show_what_they_are_made_of(tmp_path: Path) -> None:
    assert repr(Agent(model=ScriptedModel("x"), name="bot")) == "Agent('bot', model='scripted/model')"
    storage = SQLiteStorage(tmp_path / "memory.db")
    memory = Memory(storage=storage, working_memory=True, observational_memory=True)
    shown = f"Memory(SQLiteStorage('{tmp_path}/memory.db'), working_memory=True, observational_memory=True)"
    assert repr(memory) == shown
    agent = Agent(model=[ScriptedModel("x"), ModelEntry(model=ScriptedModel("y"))], tools=[get_weather], memory=memory)
    models = "model=['scripted/model', 'scripted/model']"
    assert repr(agent) == f"Agent('agent', {models}, tools=['get_weather'], memory={shown})"
    assert repr(Memory(storage=InMemoryStorage())) == "Memory(InMemoryStorage('memory'), last_messages=10)"


def test_a_processor_shows_its_class_and_id() -> None:
    assert repr(RegexFilter()) == "RegexFilter('regex-filter')"
    assert repr(Sequence(RegexFilter(), id="clean")) == "Sequence('clean')"


async def test_a_diary_shows_its_size() -> None:
    memory = Memory(storage=InMemoryStorage(), observational_memory=ObservationalMemoryConfig(model="extractive"))
    await memory.messages.save([Message.user("My flight is AZ 204.")], thread="trip")
    log = await memory.diary.observe(thread="trip")
    assert repr(log) == f"ObservationLog('thread:trip', generation=0, entries=1, tokens={log.tokens})"


def test_no_repr_has_a_key_or_a_password() -> None:
    model = resolve("openai/gpt-5-mini", api_key="sk-secret")
    memory = Memory(storage=PostgresStorage("postgresql://ada:secret@localhost/db?password=secret"))
    agent = Agent(model=model, memory=memory)
    for value in (model, memory, agent, memory.storage):
        assert "secret" not in repr(value)
        assert "openai/gpt-5-mini" in repr(value) or "PostgresStorage" in repr(value)


async def test_a_notebook_shows_a_result_with_its_steps() -> None:
    result = await weather_agent().generate("Weather?")
    rows = cells(result._repr_html_())
    assert rows[0] == ["step", "model", "tokens", "tool calls", "text"]
    assert [row[3:] for row in rows[1:]] == [
        ["get_weather(city='Rome') -> '18 °C in Rome'", ""],
        ["", "It will be warm in Rome."],
    ]


async def test_a_notebook_shows_a_diary() -> None:
    memory = Memory(
        storage=InMemoryStorage(),
        observational_memory=ObservationalMemoryConfig(
            model="extractive", observation=ObservationConfig(message_tokens=20)
        ),
    )
    agent = Agent(model=ScriptedModel(lambda request: "Noted."), memory=memory)
    await agent.generate("I am allergic to walnuts <b>and</b> cashews. " * 4, thread="t")
    await memory.diary.observe(thread="t")
    log = await memory.diary.get(thread="t")
    html = log._repr_html_()
    assert "<b>" not in html
    assert "walnuts <b>and</b>" in cells(html)[1][-1]
    await memory.close()


async def test_html_escapes_every_text() -> None:
    result = await weather_agent(HOSTILE).generate("Weather?")
    result.run_id = HOSTILE
    html = result._repr_html_()
    html.encode()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "<script>" in cells(html)[1][3]
    assert asdict(result)["run_id"] == HOSTILE


def cells(html: str) -> list[list[str]]:
    """The texts of a table, by row. A wrong tag is an error."""
    return [[cell.text or "" for cell in row] for row in ElementTree.fromstring(html).iter("tr")]
