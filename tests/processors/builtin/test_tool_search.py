"""``ToolSearchProcessor``: tools are found by words, loaded by name, and stay loaded for their thread."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarist import Agent, Tool, tool
from diarist.exceptions import ConfigError, ProcessorError
from diarist.processors import ToolSearchProcessor
from diarist.processors.builtin.tool_search import ToolIndex
from diarist.testing import ScriptedModel, ToolCall


def make_tool(name: str, description: str) -> Tool:
    return Tool(name=name, description=description, function=lambda: f"{name} ran")


LIBRARY = [
    make_tool("createIssue", "Open a new issue in a GitHub repository."),
    make_tool("close_issue", "Close an issue in a GitHub repository."),
    make_tool("send_email", "Send a message to one or more recipients."),
    make_tool("search_flights", "Find flights between two airports on a date."),
    make_tool("book_flight", "Book a flight that was found before."),
    make_tool("translate", "Translate a text into another language."),
]


@tool
def clock() -> str:
    """Tell the time."""
    return "noon"


def names(query: str, **options: Any) -> list[str]:
    found = ToolIndex(LIBRARY).search(query, **{"top_k": 5, "min_score": 0.1, **options})
    return [tool.name for tool, _ in found]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("createIssue", "createIssue"),
        ("create issue", "createIssue"),
        ("create_issue", "createIssue"),
        ("write a mail to recipients", "send_email"),
        ("email", "send_email"),
        ("flights between airports", "search_flights"),
        ("book a flight", "book_flight"),
        ("language", "translate"),
        ("transl", "translate"),
    ],
)
def test_the_best_match_comes_first(query: str, first: str) -> None:
    assert names(query)[0] == first


def test_results_are_limited_in_number_and_by_score() -> None:
    assert len(names("issue in a GitHub repository", top_k=1)) == 1
    assert names("quantum chromodynamics") == []
    assert names("") == []
    assert names("issue", min_score=1000) == []


@given(st.text())
def test_hits_are_sorted_by_score(query: str) -> None:
    hits = ToolIndex(LIBRARY).search(query, top_k=3, min_score=0.1)
    assert len(hits) <= 3
    assert [score for _, score in hits] == sorted((score for _, score in hits), reverse=True)


async def test_search_load_and_call() -> None:
    model = ScriptedModel(
        ToolCall("search_tools", {"query": "send an email"}),
        ToolCall("load_tool", {"name": "send_email"}),
        ToolCall("send_email"),
        "sent",
    )
    processor = ToolSearchProcessor(LIBRARY, top_k=2)
    agent = Agent(model=model, tools=[clock], input_processors=[processor])
    result = await agent.generate("Mail Ada.", thread="t")
    assert result.text == "sent"
    offered = [[definition.name for definition in request.tools] for request in model.requests]
    assert offered[:2] == [["clock", "search_tools", "load_tool"]] * 2
    assert offered[2:] == [["clock", "search_tools", "load_tool", "send_email"]] * 2
    found, loaded, ran = [step.tool_calls[0].result for step in result.steps[:3]]
    assert found[0]["name"] == "send_email"
    assert found[0]["loaded"] is False
    assert found[0]["score"] > 0.1
    assert len(found) <= 2
    assert "next step" in loaded
    assert ran == "send_email ran"


async def load(agent_options: dict[str, Any], name: str, **options: Any) -> list[str]:
    """Load a tool; returns the names offered in the step after."""
    model = ScriptedModel(ToolCall("load_tool", {"name": name}), "ok")
    await Agent(model=model, **agent_options).generate("?", **options)
    return [definition.name for definition in model.requests[1].tools][2:]


async def offered(processor: ToolSearchProcessor, given: Any = "?", **options: Any) -> list[str]:
    model = ScriptedModel("ok")
    await Agent(model=model, input_processors=[processor]).generate(given, **options)
    return [definition.name for definition in model.requests[0].tools][2:]


async def test_loaded_tools_stay_for_their_thread_in_order() -> None:
    processor = ToolSearchProcessor(LIBRARY)
    with_it = {"input_processors": [processor]}
    assert await load(with_it, "translate", thread="a") == ["translate"]
    assert await load(with_it, "close_issue", thread="a") == ["translate", "close_issue"]
    assert await load(with_it, "translate", thread="a") == ["translate", "close_issue"]
    assert await offered(processor, thread="a") == ["translate", "close_issue"]
    assert await offered(processor, thread="b") == []
    assert processor.loaded("a") == ["translate", "close_issue"]


async def test_without_a_thread_tools_stay_loaded_for_the_run() -> None:
    processor = ToolSearchProcessor(LIBRARY)
    assert await load({"input_processors": [processor]}, "translate") == ["translate"]
    assert await offered(processor) == []


async def test_an_unused_thread_loses_its_tools() -> None:
    now = [0.0]
    processor = ToolSearchProcessor(LIBRARY, ttl=10, clock=lambda: now[0])
    await load({"input_processors": [processor]}, "translate", thread="a")
    now[0] = 9
    assert await offered(processor, thread="a") == ["translate"]
    now[0] = 18
    assert await offered(processor, thread="a") == ["translate"]
    now[0] = 28
    assert await offered(processor, thread="a") == []


@pytest.mark.parametrize("more", [None, "Be quick."])
async def test_a_call_can_be_approved_in_another_process(more: str | None) -> None:
    pay = tool(name="pay", needs_approval=True)(lambda: "paid")

    def agent(*replies: Any) -> Agent:
        return Agent(model=ScriptedModel(*replies), input_processors=[ToolSearchProcessor([*LIBRARY, pay])])

    stopped = await agent(ToolCall("load_tool", {"name": "pay"}), ToolCall("pay")).generate("?")
    result = await agent("done").resume({stopped.pending[0].call_id: True}, of=stopped, input=more)
    assert (result.text, result.steps[0].tool_calls[0].result) == ("done", "paid")
    following = [*result.conversation, {"role": "user", "content": "And now?"}]
    assert await offered(ToolSearchProcessor([*LIBRARY, pay]), following) == []


async def test_an_unknown_name_suggests_similar_ones() -> None:
    model = ScriptedModel(ToolCall("load_tool", {"name": "send_mail"}), "sorry")
    agent = Agent(model=model, input_processors=[ToolSearchProcessor(LIBRARY)])
    result = await agent.generate("?")
    assert result.steps[0].tool_calls[0].state == "error"
    assert result.steps[0].tool_calls[0].result == "there is no tool 'send_mail' to load; similar: send_email"


@pytest.mark.parametrize(
    ("tools", "options", "message"),
    [
        ([], {}, "tools is empty"),
        ([LIBRARY[0], make_tool("createIssue", "")], {}, "two tools have the name 'createIssue'"),
        ([make_tool("load_tool", "")], {}, "must not have the name 'load_tool'"),
        (LIBRARY, {"top_k": 0}, "top_k must be a whole number from 1 on"),
        (LIBRARY, {"ttl": 0}, "ttl must be more than 0"),
        (LIBRARY, {"min_score": -1}, "min_score must not be negative"),
    ],
)
def test_wrong_options_are_named(tools: list[Tool], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ToolSearchProcessor(tools, **options)


async def test_an_own_tool_with_the_name_of_one_of_the_two_is_refused() -> None:
    agent = Agent(
        model=ScriptedModel("ok"),
        tools=[make_tool("search_tools", "Search the workshop.")],
        input_processors=[ToolSearchProcessor(LIBRARY)],
    )
    with pytest.raises(ProcessorError, match="the agent has a tool 'search_tools' of its own: give it another name"):
        await agent.generate("?")
