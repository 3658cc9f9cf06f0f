"""A function as a processor."""

from __future__ import annotations

from typing import Any

import pytest

from diarist import Agent, Processor
from diarist.exceptions import ConfigError
from diarist.processors.functions import processor
from diarist.testing import ScriptedModel, ToolCall
from tests.agent.kit import collect, streamed_text

HOOKS = [
    "input",
    "input_step",
    "llm_request",
    "llm_response",
    "output_stream",
    "output_step",
    "output_result",
    "api_error",
    "tool_call",
    "tool_result",
]


def work() -> str:
    """Work."""
    return "done"


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("hook", HOOKS)
async def test_every_hook_has_its_decorator(hook: str, is_async: bool) -> None:
    seen: list[str] = []

    def note_it(args: Any) -> Any:
        seen.append(type(args).__name__)
        return args.part if hook == "output_stream" else {"retry": True} if hook == "api_error" else None

    async def note_it_async(args: Any) -> Any:
        return note_it(args)

    made = getattr(processor, hook)(note_it_async if is_async else note_it)
    assert isinstance(made, Processor)
    assert made.id == ("note-it-async" if is_async else "note-it")
    assert [name for name in HOOKS if made.handles(f"process_{name}")] == [hook]
    model = ScriptedModel(RuntimeError("down"), "ok") if hook == "api_error" else ScriptedModel(ToolCall("work"), "ok")
    result = await Agent(model=model, tools=[work], processors=[made]).generate("hi")
    assert result.text == "ok"
    assert seen
    expected = "Process" + "".join(word.capitalize() for word in hook.split("_")) + "Args"
    assert {name.lower() for name in seen} == {expected.lower()}


async def test_options_go_in_parentheses() -> None:
    @processor.output_step(hold_output=True, id="guard", description="No BAD answers.")
    def _no_bad(args: Any) -> None:
        if "BAD" in args.text:
            args.abort("say GOOD", retry=True)

    assert (_no_bad.id, _no_bad.hold_output, _no_bad.description) == ("guard", True, "No BAD answers.")
    agent = Agent(model=ScriptedModel("BAD", "GOOD"), output_processors=[_no_bad], max_processor_retries=1)
    assert streamed_text(await collect(agent.stream("hi"))) == "GOOD"


def test_the_function_stays_callable_and_named() -> None:
    @processor.output_step
    def _looks_at_it(args: Any) -> str:
        """Look at it."""
        return f"looked at {args}"

    assert _looks_at_it.id == "looks-at-it"
    assert _looks_at_it.description == "Look at it."
    assert _looks_at_it(1) == "looked at 1"


async def test_two_functions_of_one_name_are_two_processors_with_one_id() -> None:
    def make() -> Processor[Any]:
        @processor.input
        def guard(args: Any) -> None: ...

        return guard

    with pytest.raises(ConfigError, match="'guard'"):
        Agent(model=ScriptedModel(), processors=[make(), make()])


@pytest.mark.parametrize("make", [lambda: processor.input(3), lambda: processor.input(hold=True)(work)])  # type: ignore[call-overload]
def test_what_makes_no_processor(make: Any) -> None:
    with pytest.raises(ConfigError, match=r"processor\.input"):
        make()


async def test_the_tripwire_names_the_function() -> None:
    @processor.input
    def refuse(args: Any) -> None:
        args.abort("no")

    result = await Agent(model=ScriptedModel(), processors=[refuse]).generate("hi")
    assert result.tripwire is not None
    assert (result.tripwire.processor_id, result.tripwire.hook) == ("refuse", "process_input")
