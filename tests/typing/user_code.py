"""Code as users write it, checked by pyright (strict) and mypy (strict) in ``test_types.py``; it is never run.

A line that ends in ``# error`` must be refused by both type checkers, and every other line must pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from typing_extensions import TypedDict

import diarist.memory
import diarist.processors
import diarist.storage
import diarist.testing
import diarist.vectors
from diarist import Agent, AgentResult, AgentStream, CallOptions, Tool, ToolContext, tool
from diarist.processors import ProcessInputArgs, Processor
from diarist.testing import ScriptedModel, ToolCall

INVOICE = '{"total": 12}'


@dataclass
class Invoice:
    total: int


class Row(TypedDict):
    total: int


@dataclass
class App:
    prices: dict[str, int]


@dataclass
class ShopApp(App):
    shop: str = "Rome"


class Other:
    pass


# --- the result has the type of output_type


async def results() -> None:
    agent = Agent(model=ScriptedModel(lambda request: INVOICE))

    result = await agent.generate("How much?", output_type=Invoice, thread="t", resource="ada")
    assert_type(result, AgentResult[Invoice])
    assert_type(result.output, Invoice)
    assert_type(result.output.total, int)
    print(result.output.sum)  # error

    assert_type((await agent.generate("How much?", output_type=Row)).output, Row)
    many = Agent(model=ScriptedModel(f"[{INVOICE}]"))
    assert_type((await many.generate("How much?", output_type=list[Invoice])).output, list[Invoice])
    by_schema = await agent.generate("How much?", output_type={"type": "object"})
    assert_type(by_schema, AgentResult[Any])

    text = await agent.generate("Hello")
    assert_type(text, AgentResult[None])
    assert_type(text.text, str)
    print(text.output.total)  # error

    async with agent.stream("How much?", output_type=Invoice) as stream:
        assert_type(stream, AgentStream[Invoice])
        assert_type(await stream.result(), AgentResult[Invoice])
    assert_type(agent.stream("Hello"), AgentStream[None])

    approved = await agent.resume({"c1": True}, of=result, output_type=Invoice, thread="t", resource="ada")
    assert_type(approved, AgentResult[Invoice])
    print(approved.output.sum)  # error
    assert_type(await agent.resume({"c1": "too expensive"}, output_type={"type": "object"}), AgentResult[Any])
    assert_type(await agent.resume({"c1": True}), AgentResult[None])
    async with agent.stream_resume({"c1": True}, input="Yes.", output_type=Invoice) as stream:
        assert_type(stream, AgentStream[Invoice])
    assert_type(agent.stream_resume({"c1": True}), AgentStream[None])


def scripts() -> None:
    calls = [ToolCall("price", {"flight": "AZ 204"})]
    ScriptedModel(calls, ["Wait.", *calls], "84 EUR.")


def sync_results() -> None:
    agent = Agent(model=ScriptedModel(lambda request: INVOICE))
    assert_type(agent.generate_sync("How much?", output_type=Invoice), AgentResult[Invoice])
    assert_type(agent.generate_sync("Hello"), AgentResult[None])


# --- an agent has the type of deps that its tools need


@tool
def price(flight: str, context: ToolContext[App]) -> str:
    """Price of a flight."""
    assert_type(context.deps, App)
    return str(context.deps.prices[flight])


@tool(timeout=5)
async def book(context: ToolContext[App], flight: str, seats: int = 1) -> str:
    """Book seats."""
    return f"{flight}: {seats} at {context.deps.prices[flight]}"


@tool
async def shop(context: ToolContext[ShopApp]) -> str:
    """The shop."""
    return context.deps.shop


@tool
def other(city: str, context: ToolContext[Other]) -> str:
    """Needs other deps."""
    return city


@tool
def weather(city: str) -> str:
    """Weather in a city."""
    return city


@tool
def anything(city: str, context: ToolContext) -> str:
    """Has no type of deps."""
    return city


def plain(city: str) -> str:
    """Not decorated."""
    return city


class Search:
    def find(self, words: str) -> str:
        """A bound method."""
        return words


def tools_have_types() -> None:
    assert_type(price, Tool[App])
    assert_type(book, Tool[App])
    assert_type(weather, Tool[object])
    assert_type(anything, Tool[Any])
    assert weather("Rome") == "Rome"


async def deps_are_checked() -> None:
    model = ScriptedModel(lambda request: INVOICE)
    inferred = Agent(model=model, tools=[price])
    assert_type(inferred, Agent[App])
    await inferred.generate("Hello", deps=App({}))
    await inferred.generate("Hello", deps=ShopApp({}))
    await inferred.generate("Hello", deps=Other())  # error
    inferred.stream("Hello", deps="prices")  # error

    written = Agent[App](model=model, tools=[price, book, weather, anything, plain, Search().find])
    result = await written.generate("How much?", deps=App({}), output_type=Invoice)
    assert_type(result, AgentResult[Invoice])
    await written.generate("How much?", deps=Other(), output_type=Invoice)  # error

    Agent[App](model=model, tools=[other])  # error
    Agent[App](model=model, tools=[price, shop])  # error
    Agent[ShopApp](model=model, tools=[price, shop])


# --- annotations without type arguments stay valid


class Service:
    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.last: AgentResult | None = None

    async def answer(self, text: str) -> AgentResult:
        self.last = await self.agent.generate(text)
        return self.last


class Quiet(Processor):
    """Needs neither the type of ``deps`` nor a state."""

    async def process_input(self, args: ProcessInputArgs) -> None:
        args.abort("quiet")


def needs_app(agent: Agent[App]) -> str:
    return agent.name


async def annotated() -> None:
    agent = Agent(model=ScriptedModel("Hello", INVOICE), tools=[])
    assert_type(agent, Agent[Any])
    typed = Agent(model="test/model" if not agent else ScriptedModel("Hello"), tools=[weather])
    needs_app(agent)
    needs_app(typed)
    await Service(typed).answer("Hello")
    options: CallOptions = {"output_type": Invoice, "deps": App({}), "max_steps": 2}
    await agent.generate("Hello", **options)
    await agent.generate("Hello", max_steps="two")  # error


def misspelt() -> None:
    print(diarist.Agnet)  # error
    print(diarist.memory.Memroy)  # error
    print(diarist.processors.RegxFilter)  # error
    print(diarist.storage.SQLLiteStorage)  # error
    print(diarist.testing.ScriptdModel)  # error
    print(diarist.vectors.SQLVectorStore)  # error
