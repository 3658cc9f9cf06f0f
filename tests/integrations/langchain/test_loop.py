"""What the adapter relies on in LangChain's own loop."""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from diarist.integrations.langchain.messages import arrange, to_neutral


class Scripted(BaseChatModel):
    """Answers from a script, and keeps what it was asked."""

    script: list[AIMessage]
    asked: list[list[BaseMessage]] = []  # noqa: RUF012 - a field of pydantic, copied for each model

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **more: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **more: Any) -> ChatResult:
        self.asked.append(messages)
        return ChatResult(generations=[ChatGeneration(message=self.script.pop(0))])


class LastTurnOnly(AgentMiddleware):
    """Sends the last question and what follows it."""

    def __init__(self) -> None:
        self.hooks: list[str] = []
        self.threads: list[str | None] = []
        self.ids: list[list[str]] = []

    def before_agent(self, state: Any, runtime: Any) -> None:
        self.hooks.append("before_agent")

    def after_agent(self, state: Any, runtime: Any) -> None:
        self.hooks.append("after_agent")

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        self.hooks.append("wrap_model_call")
        self.threads.append(request.runtime.execution_info.thread_id)
        history = to_neutral(request.messages)
        self.ids.append(ids := [message.id for message in history.messages])
        asked = max(place for place, message in enumerate(history.messages) if message.role == "user")
        places = {entry.message.id: entry.places for entry in history.entries}
        return handler(request.override(messages=arrange(request.messages, places, order=ids[asked:])))


@tool
def look(at: str) -> str:
    """Look at something."""
    return f"{at}: nothing"


@tool
def confirm() -> str:
    """Ask the user."""
    return str(interrupt("Sure?"))


def call(name: str, args: dict[str, Any]) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": f"call-{name}", "type": "tool_call"}])


THREAD: Any = {"configurable": {"thread_id": "trip"}}


def test_the_model_sees_the_selection_and_the_checkpoint_has_everything() -> None:
    model = Scripted(script=[call("look", {"at": "sky"}), AIMessage("Nothing."), AIMessage("Fine.")])
    middleware = LastTurnOnly()
    agent = create_agent(model, [look], middleware=[middleware], checkpointer=InMemorySaver())
    agent.invoke({"messages": "Look."}, THREAD)
    state = agent.invoke({"messages": "And you?"}, THREAD)
    assert [[m.type for m in asked] for asked in model.asked] == [["human"], ["human", "ai", "tool"], ["human"]]
    assert [m.type for m in state["messages"]] == ["human", "ai", "tool", "ai", "human", "ai"]
    assert middleware.threads == ["trip"] * 3
    assert middleware.ids[2][:2] == middleware.ids[1]  # the ids last from call to call


def test_an_interrupt_ends_without_a_hook_and_goes_on_without_a_hook() -> None:
    model = Scripted(script=[call("confirm", {}), AIMessage("Done.")])
    middleware = LastTurnOnly()
    agent = create_agent(model, [confirm], middleware=[middleware], checkpointer=InMemorySaver())
    agent.invoke({"messages": "Pay."}, THREAD)
    assert middleware.hooks == ["before_agent", "wrap_model_call"]
    agent.invoke(Command(resume="yes"), THREAD)
    assert middleware.hooks[2:] == ["wrap_model_call", "after_agent"]


def test_without_a_checkpointer_there_is_no_thread_and_ids_do_not_last() -> None:
    model, middleware = Scripted(script=[AIMessage("Hello."), AIMessage("Hello.")]), LastTurnOnly()
    agent = create_agent(model, [look], middleware=[middleware])
    for _ in range(2):
        agent.invoke({"messages": [{"role": "user", "content": "Hi"}]})
    assert middleware.threads == [None, None]
    assert middleware.ids[0] != middleware.ids[1]
