"""``on_error = "continue"``: what a hook had changed before it failed is taken back, as if it had not run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from diarist import Agent, Message, Processor
from diarist.chunks import TextDelta
from diarist.exceptions import BadRequestError, ProcessorError
from diarist.messages import ToolPart
from diarist.processors.compose import Parallel, Sequence
from diarist.testing import ScriptedModel, ToolCall
from tests.agent.kit import run_both
from tests.processors.test_compositions import acts


def halfway(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def hook(args: Any) -> None:
        change(args)
        raise ValueError("broken")

    return hook


def text(args: Any) -> None:
    args.messages[-1].parts[0].text = "half"


def everything(args: Any) -> None:
    args.message_list.add_system("half")
    args.message_list.add(Message.user("half"))
    message = args.message_list.messages[0]
    message.parts.append("half")
    message.metadata["deep"]["list"].append("half")
    message.role = "half"


def structure(args: Any) -> None:
    args.message_list.remove([message.id for message in args.message_list.messages])


def clear_prompt(args: Any) -> None:
    args.prompt.messages[0].parts[0].text = "half"
    args.prompt.messages.clear()
    args.request.tools.clear()


def nested_args(args: Any) -> None:
    args.call.args["order"]["items"].append("half")
    args.call.args["more"] = "half"


def result_text(args: Any) -> None:
    args.call.result = "half"


def chunk(args: Any) -> None:
    args.part.payload.text = "half"


def response(args: Any) -> None:
    args.response.clear()


CHANGES = [
    *(("process_input", change) for change in (text, everything, structure)),
    *(("process_input_step", change) for change in (text, everything, structure)),
    ("process_llm_request", clear_prompt),
    ("process_llm_request", everything),
    ("process_llm_response", response),
    ("process_output_stream", chunk),
    *(("process_output_step", change) for change in (text, everything, structure)),
    *(("process_output_result", change) for change in (text, everything, structure)),
    ("process_tool_call", nested_args),
    ("process_tool_call", everything),
    ("process_tool_result", result_text),
    ("process_tool_result", nested_args),
    ("process_api_error", text),
    ("process_api_error", structure),
]


def order(order: dict[str, list[str]], more: str = "") -> str:
    """Order things."""
    return f"ordered {order['items']} {more}".strip()


async def told(processor: Processor[Any] | None) -> tuple[list[str], list[Any], list[Any]]:
    """The prompts of a run, its messages, and how its tool went."""
    call = ToolCall("order", {"order": {"items": ["tea"]}})
    model = ScriptedModel(BadRequestError("down"), call, "done")

    class Repair(Processor[Any]):
        def process_api_error(self, args: Any) -> Any:
            return {"retry": True}

    seen: list[Any] = []

    class Sees(Processor[Any]):
        def process_llm_response(self, args: Any) -> None:
            seen.append(len(args.response))

    given = [processor] if processor else []
    agent = Agent(model=model, tools=[order], processors=[*given, Repair(), Sees()])
    result = await agent.generate(Message.user("hello", metadata={"deep": {"list": []}}))
    said = [(message.role, message.text, message.metadata) for message in result.conversation]
    tools = [(part.args, part.result) for step in result.steps for part in step.tool_calls]
    return [repr((request.text, request.tools)) for request in model.requests], [said, tools], seen


@pytest.mark.parametrize("nested", [None, Sequence, Parallel])
@pytest.mark.parametrize(("hook", "change"), CHANGES)
async def test_half_an_edit_is_taken_back(hook: str, change: Any, nested: Any) -> None:
    fails = acts("fails", hook, halfway(change), on_error="continue")
    assert await told(nested(fails) if nested else fails) == await told(None)


async def test_a_plain_stream_hook_leaves_the_chunk_as_it_was() -> None:
    class Half(Processor[Any]):
        on_error = "continue"

        def process_output_stream(self, args: Any) -> Any:
            if isinstance(args.part, TextDelta):
                args.part.payload.text = "half"
            raise ValueError("broken")

    result, _ = await run_both(lambda: Agent(model=ScriptedModel("said"), processors=[Half()]))
    assert result.text == "said"


async def test_the_results_of_other_calls_stay() -> None:
    """One call's hook fails while another call has ended: nothing of that is taken back."""
    ended = asyncio.Event()

    async def look(args: Any) -> None:
        if args.call.args["order"]["items"] == ["tea"]:
            await ended.wait()
            raise ValueError("broken")
        ended.set()

    fails = acts("fails", "process_tool_result", look, on_error="continue")
    calls: list[Any] = [ToolCall("order", {"order": {"items": [what]}}) for what in ("tea", "milk")]
    result = await Agent(model=ScriptedModel(calls, "done"), tools=[order], processors=[fails]).generate("hi")
    parts: list[ToolPart] = result.steps[0].tool_calls
    assert [part.result for part in parts] == ["ordered ['tea']", "ordered ['milk']"]


# -- create_state


class Stateless(Processor[Any]):
    def __init__(self, on_error: Any) -> None:
        self.on_error = on_error

    def create_state(self) -> Any:
        raise ValueError("no state")

    def process_input(self, args: Any) -> None:
        pass


@pytest.mark.parametrize("on_error", ["fail", "continue"])
async def test_without_a_state_the_run_ends(on_error: str) -> None:
    with pytest.raises(ProcessorError, match="'stateless' failed in create_state: ValueError: no state"):
        await Agent(model=ScriptedModel("said"), processors=[Stateless(on_error)]).generate("hi")
