"""What a hook makes of messages is looked at when it has ended: the error names it, and what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from diarist import Agent, Memory, Message
from diarist.exceptions import InputError, ProcessorResultError
from diarist.messages import FilePart, Prompt, TextPart, ToolCallPart, ToolPart
from diarist.processors.compose import Parallel, Sequence
from diarist.storage import InMemoryStorage
from diarist.testing import Reply, ScriptedModel
from tests.processors.test_compositions import HOOKS, acts, agent

MESSAGES = ["process_input", "process_input_step", "process_output_step", "process_output_result"]


def unusable(**fields: Any) -> Message:
    return Message(**{"role": "user", "parts": [TextPart(text="hello")], **fields})


def tool_part(**fields: Any) -> ToolPart:
    part = ToolPart(call_id="c", name="n", args={})
    for name, value in fields.items():
        setattr(part, name, value)
    return part


FLAWS = [
    ({"parts": "hello"}, "parts must be a list of parts, not str"),
    ({"parts": ["hello"]}, "a part must be TextPart.* not str"),
    ({"parts": [{"type": "text", "text": "hello"}]}, "a part must be TextPart.* not dict"),
    ({"parts": [TextPart(text=5)]}, "text of a TextPart must be str, not int"),  # type: ignore[arg-type]
    ({"parts": [tool_part(args="x")]}, "args of a ToolPart must be dict, not str"),
    ({"parts": [tool_part(state="done")]}, "state of a ToolPart must be call, result, error or denied, not 'done'"),
    ({"parts": [FilePart(media_type="image/png", data="text")]}, "data of a FilePart must be bytes or None, not str"),  # type: ignore[arg-type]
    ({"parts": [FilePart(media_type="image/png", url="u", name=5)]}, "name of a FilePart must be str or None, not int"),  # type: ignore[arg-type]
    ({"parts": [ToolCallPart(call_id="c", name="n", args={})]}, "a part must be TextPart.* not ToolCallPart"),
    ({"role": "robot"}, "role must be system, user, assistant or tool, not 'robot'"),
    ({"role": ["user"]}, r"role must be .* not \['user'\]"),
    ({"id": 7}, "id must be str, not int"),
    ({"metadata": None}, "metadata must be dict, not None"),
]


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("hook", MESSAGES)
@pytest.mark.parametrize(("fields", "says"), FLAWS)
async def test_a_returned_message_that_makes_no_sense(hook: str, fields: Any, says: str, memory: bool) -> None:
    bad = acts("bad", hook, lambda args: [*args.messages, unusable(**fields)])
    step = None if hook == "process_input" else 0
    options: Any = {"memory": Memory(storage=InMemoryStorage())} if memory else {}
    call: Any = {"thread": "t"} if memory else {}
    with pytest.raises(ProcessorResultError, match=rf"'bad' returned from {hook}.*message \d: {says}") as raised:
        await Agent(model=ScriptedModel("said"), processors=[bad], **options).generate("hi", **call)
    assert (raised.value.processor_id, raised.value.hook, raised.value.step) == ("bad", hook, step)


def part_text(args: Any) -> None:
    next(part for message in args.messages for part in message.parts if isinstance(part, TextPart)).text = 5


def part_added(args: Any) -> None:
    args.messages[-1].parts.append("x")


def parts_replaced(args: Any) -> None:
    args.messages[-1].parts = None


def role(args: Any) -> None:
    args.messages[-1].role = "robot"


def another_id(args: Any) -> None:
    args.messages[-1].id = "other"


def added(args: Any) -> None:
    args.message_list.add(unusable(parts="hello"))


@pytest.mark.parametrize("whole", [lambda part: part, Sequence, Parallel])
@pytest.mark.parametrize("hook", [*MESSAGES, "process_api_error"])
@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (part_text, "text of a TextPart must be str, not int"),
        (part_added, "a part must be .* not str"),
        (parts_replaced, "parts must be a list of parts, not None"),
        (role, "role must be"),
        (another_id, "its id was changed, to 'other'"),
        (added, "parts must be a list of parts, not str"),
    ],
)
async def test_an_edit_in_place_that_makes_no_sense(hook: str, edit: Any, says: str, whole: Any) -> None:
    with pytest.raises(ProcessorResultError, match=rf"'bad' left in {hook}.*message \d: {says}"):
        await agent(whole(acts("bad", hook, edit)), hook=hook).generate("hi")


async def test_a_step_prepared_with_nonsense() -> None:
    with pytest.raises(ProcessorResultError, match="'prepare-step' left in prepare_step at step 0: message 0: text"):
        await Agent(model=ScriptedModel("x")).generate("hi", prepare_step=part_text)


@pytest.mark.parametrize("hook", ["process_tool_call", "process_tool_result"])
async def test_a_tool_call_that_makes_no_sense(hook: str) -> None:
    def edit(args: Any) -> None:
        args.call.args = "x"

    with pytest.raises(ProcessorResultError, match=rf"'bad' left in {hook} at step 0: args of a ToolPart must be dict"):
        await agent(acts("bad", hook, edit), hook=hook).generate("hi")


def lone_text(args: Any) -> Any:
    return Prompt(messages=["hello"])  # type: ignore[list-item]


def prompt_part(args: Any) -> None:
    args.prompt.messages[0].parts[0].text = 5


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lone_text, "message 0 of the prompt must be a PromptMessage, not str"),
        (prompt_part, "message 0 of the prompt: text of a TextPart must be str, not int"),
    ],
)
async def test_a_prompt_that_makes_no_sense(edit: Any, says: str) -> None:
    with pytest.raises(ProcessorResultError, match=rf"'bad' left in process_llm_request at step 0: {says}"):
        await agent(acts("bad", "process_llm_request", edit), hook="process_llm_request").generate("hi")


async def test_what_makes_sense_passes() -> None:
    parts: list[Any] = [TextPart(text="look"), FilePart(media_type="image/png", url="https://example.com/a.png")]
    fine = acts("fine", "process_input", lambda args: [*args.messages, Message(role="user", parts=parts)])
    model = ScriptedModel(Reply(text="said", reasoning="hm"))
    assert (await Agent(model=model, processors=[fine]).generate("hi")).text == "said"


@pytest.mark.parametrize(("fields", "says"), FLAWS)
async def test_the_callers_own_message_is_looked_at_too(fields: Any, says: str) -> None:
    fine = Message.user("fine")
    with pytest.raises(InputError, match=rf"^message 1: {says}"):
        await Agent(model=ScriptedModel("x")).generate([fine, unusable(**fields)])
    with pytest.raises(InputError, match=rf"^message 0: {says}"):
        await Memory(storage=InMemoryStorage()).messages.save([unusable(**fields)], thread="t")


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"role": "robot", "parts": []}, "role must be"),
        ({"role": "user", "parts": "hello"}, "not a message"),
        ({"role": "user", "parts": [{"type": "text", "text": 5}]}, "text of a TextPart must be str, not int"),
    ],
)
async def test_and_the_callers_dictionaries(entry: Any, says: str) -> None:
    with pytest.raises(InputError, match=rf"^message 0: {says}"):
        await Agent(model=ScriptedModel("x")).generate(entry)


async def test_the_error_lists_the_results_that_the_hook_allows() -> None:
    for hook in MESSAGES:
        with pytest.raises(ProcessorResultError) as raised:
            await agent(acts("bad", hook, lambda args: 7), hook=hook).generate("hi")
        assert ("its dict" in str(raised.value)) is (HOOKS[hook] == "input_processors")
