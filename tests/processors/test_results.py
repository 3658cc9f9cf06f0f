"""What hooks may return; anything else is an error that names processor, hook and step."""

from __future__ import annotations

from typing import Any

import pytest

from diarist import Agent, Message, Processor
from diarist.exceptions import ConfigError, InputError, ProcessorResultError
from diarist.message_list import MessageList, SystemMessage
from diarist.messages import TextPart
from diarist.models import ModelSettings
from diarist.testing import ScriptedModel
from tests.agent.kit import collect, types
from tests.processors.test_compositions import acts, agent

INPUT = ("process_input", "process_input_step")
OUTPUT = ("process_output_step", "process_output_result")


def returning(hook: str, value: Any) -> Processor[Any]:
    """A processor that returns ``value`` from ``hook``, or what it makes of the args if it is a function."""

    def plain(self: Any, args: Any) -> Any:
        return value(args) if callable(value) else value

    return type("Returns", (Processor,), {hook: plain})()


async def run(*processors: Processor[Any], **options: Any) -> tuple[ScriptedModel, Any]:
    model = ScriptedModel(lambda request: "ok")
    agent = Agent(model=model, instructions="I", input_processors=processors, output_processors=processors, **options)
    result = await agent.generate([Message.user("one", id="1"), Message.user("two", id="2")])
    return model, result


def sent(model: ScriptedModel) -> list[str]:
    return [message.text for message in model.requests[0].prompt]


# -- what is allowed


@pytest.mark.parametrize("hook", INPUT)
async def test_a_message_added_while_the_hook_worked_stays_beside_a_returned_list(hook: str) -> None:
    def adds(args: Any) -> list[Message]:
        args.message_list.add(Message.user("added"), "context")
        return list(args.messages)

    model, _ = await run(returning(hook, adds))
    assert "added" in sent(model)


@pytest.mark.parametrize("hook", [*INPUT, *OUTPUT, "process_llm_request"])
async def test_none_changes_nothing(hook: str) -> None:
    model, result = await run(returning(hook, None))
    assert (sent(model), result.text) == (["I", "one", "two"], "ok")


@pytest.mark.parametrize("hook", [*INPUT, *OUTPUT])
async def test_the_runs_own_message_list_changes_nothing_more(hook: str) -> None:
    model, result = await run(returning(hook, lambda args: args.message_list))
    assert (sent(model), result.text) == (["I", "one", "two"], "ok")


@pytest.mark.parametrize("hook", INPUT)
@pytest.mark.parametrize("as_dict", [False, True])
async def test_a_list_of_messages_is_reconciled(hook: str, as_dict: bool) -> None:
    def change(args: Any) -> Any:
        new = [args.messages[1], Message.user("new"), Message.system("more"), Message.user("ONE", id="1")]
        return {"messages": new} if as_dict else new

    model, result = await run(returning(hook, change))
    assert sent(model) == ["I", "more", "two", "new", "ONE"]
    assert [message.text for message in result.messages] == ["ok"]


@pytest.mark.parametrize("hook", INPUT)
async def test_an_empty_list_from_an_input_hook_removes_what_was_shown(hook: str) -> None:
    model, _ = await run(returning(hook, []))
    assert sent(model) == ["I"]


@pytest.mark.parametrize("hook", OUTPUT)
async def test_an_empty_list_from_an_output_hook_changes_nothing(hook: str) -> None:
    _, result = await run(returning(hook, []))
    assert result.text == "ok"


async def test_a_list_from_process_output_result_is_the_response() -> None:
    def change(args: Any) -> Any:
        return [Message.assistant("rewritten", id=args.messages[0].id), Message.assistant("added")]

    _, result = await run(returning("process_output_result", change))
    assert [message.text for message in result.messages] == ["rewritten", "added"]


@pytest.mark.parametrize("hook", INPUT)
@pytest.mark.parametrize("value", [["A", SystemMessage("B", "tag")], ("A", "B")])
async def test_system_messages_are_replaced(hook: str, value: Any) -> None:
    model, _ = await run(returning(hook, {"system_messages": value}))
    assert sent(model) == ["A", "B", "one", "two"]


@pytest.mark.parametrize("hook", INPUT)
async def test_messages_and_system_messages_together(hook: str) -> None:
    model, _ = await run(returning(hook, {"system_messages": ["S"], "messages": [Message.user("U")]}))
    assert sent(model) == ["S", "U"]


async def test_what_one_processor_returned_is_what_the_next_is_shown() -> None:
    def upper(args: Any) -> Any:
        return [Message.user(message.text.upper(), id=message.id) for message in args.messages]

    shown: list[str] = []
    look = type("Look", (Processor,), {"process_input": lambda self, args: shown.extend(m.text for m in args.messages)})
    await run(returning("process_input", upper), look())
    assert shown == ["ONE", "TWO"]


async def test_new_messages_have_their_hooks_source() -> None:
    sources: list[Any] = []

    def look(self: Any, args: Any) -> None:
        sources.extend(args.message_list.origin_of(name) for name in ("in", "step", "out"))

    def adds(name: str) -> Any:
        return lambda args: [*args.messages, Message.user(name, id=name)]

    processors = [returning("process_input", adds("in")), returning("process_input_step", adds("step"))]
    processors.append(returning("process_output_step", adds("out")))
    for number, processor in enumerate(processors):
        processor.id = str(number)
    await run(*processors, type("Look", (Processor,), {"process_output_result": look})())
    assert sources == ["input", "context", "response"]


async def test_returning_the_list_of_the_args_after_editing_it() -> None:
    def edit(args: Any) -> Any:
        args.messages.reverse()
        return args.messages

    model, _ = await run(returning("process_input", edit))
    assert sent(model) == ["I", "two", "one"]


@pytest.mark.parametrize("hook", [*INPUT, *OUTPUT])
async def test_a_changed_list_that_is_not_returned_is_refused(hook: str) -> None:
    says = f"'returns' returned from {hook}.*: no list of messages, but it changed args.messages; return that list"

    def edit(args: Any) -> None:
        args.messages.append(Message.user("lost"))

    def edit_and_return_another(args: Any) -> Any:
        edit(args)
        return args.message_list

    for change in (edit, edit_and_return_another):
        with pytest.raises(ProcessorResultError, match=says):
            await run(returning(hook, change))


async def test_editing_a_messages_parts_in_place_is_enough() -> None:
    def edit(args: Any) -> None:
        args.messages[0].parts[0] = TextPart(text="edited")

    model, _ = await run(returning("process_input", edit))
    assert sent(model) == ["I", "edited", "two"]


# -- what is not

FOREIGN = MessageList()


@pytest.mark.parametrize(
    ("hook", "value", "says"),
    [
        *((hook, "text", "str") for hook in (*INPUT, *OUTPUT)),
        *((hook, 7, "int") for hook in (*INPUT, *OUTPUT, "process_llm_request")),
        *((hook, FOREIGN, "a MessageList that is not this run's own") for hook in (*INPUT, *OUTPUT)),
        *((hook, ["text"], "a list with str in it") for hook in (*INPUT, *OUTPUT)),
        *((hook, {"message": []}, r"unknown keys \['message'\]") for hook in (*INPUT, "process_llm_request")),
        *((hook, {"messages": "x"}, "str") for hook in INPUT),
        *((hook, {"system_messages": [7]}, "int among system_messages") for hook in INPUT),
        *((hook, {"messages": []}, "dict") for hook in OUTPUT),
        ("process_input", {"messages": [], "message_list": FOREIGN}, "unknown keys"),
        ("process_input_step", {"message_list": FOREIGN}, "not this run's own"),
        (
            "process_input_step",
            lambda args: {"messages": [], "message_list": args.message_list},
            "both 'messages' and 'message_list'",
        ),
        ("process_input_step", {"model": 7}, "an override that cannot be used: not a model"),
        ("process_input_step", {"model": "nobody/x"}, "an override that cannot be used"),
        ("process_input_step", {"tools": "work"}, "tools must be list or tuple or Mapping, not str"),
        ("process_input_step", {"tools": [7]}, "not a tool: 7"),
        ("process_input_step", {"tool_choice": None}, "tool_choice must be str, not NoneType"),
        ("process_input_step", {"active_tools": "work"}, "active_tools must be"),
        ("process_input_step", {"model_settings": {"seed": 1}}, "model_settings must be ModelSettings, not dict"),
        ("process_input_step", {"provider_options": 1}, "provider_options must be Mapping"),
        (
            "process_input_step",
            {"provider_options": {"openai": 3}},
            "provider_options must have a dictionary per provider",
        ),
        ("process_input_step", {"structured_output": {}}, "structured_output must be OutputSchema or None"),
        ("process_llm_request", {"prompt": "x"}, "str"),
        ("process_llm_request", {"response": 7}, "int as response"),
        ("process_llm_request", {"response": ["x"]}, "str as response"),
        ("process_output_stream", "x", "str"),
        ("process_output_stream", ["x"], "str"),
        ("process_output_stream", {"type": "text-delta"}, "dict"),
    ],
)
async def test_anything_else_is_an_error_with_processor_hook_and_step(hook: str, value: Any, says: str) -> None:
    with pytest.raises(ProcessorResultError, match=says) as raised:
        await run(returning(hook, value))
    text = str(raised.value)
    step = None if hook == "process_input" else 0
    assert text.startswith("processor 'returns' returned from")
    assert (f"{hook} at step 0" if step == 0 else hook) in text
    assert (raised.value.processor_id, raised.value.hook, raised.value.step) == ("returns", hook, step)


async def test_prepare_steps_results_are_checked_as_well() -> None:
    agent = Agent(model=ScriptedModel("x"))
    with pytest.raises(ProcessorResultError, match=r"'prepare-step' returned from prepare_step at step 0: int; "):
        await agent.generate("hi", prepare_step=lambda args: 7)  # pyright: ignore[reportArgumentType]


async def test_a_stream_ends_with_the_error() -> None:
    agent = Agent(model=ScriptedModel("x"), input_processors=[returning("process_input", 7)])
    chunks = await collect(agent.stream("hi"))
    assert types(chunks) == ["start", "error"]
    assert chunks[-1].to_dict()["payload"]["kind"] == "ProcessorResultError"


# -- async by halves


async def later(value: Any = None) -> Any:
    return value


HOOKS = [*INPUT, "process_llm_request", "process_llm_response", "process_output_stream", *OUTPUT]


class Passes(Processor[Any]):
    """With it in a list, the stream hooks of that list are awaited."""

    async def process_output_stream(self, args: Any) -> Any:
        return args.part


@pytest.mark.parametrize("others", [[], [Passes()]])
async def test_a_plain_stream_hook_that_returns_an_awaitable_is_an_error(others: list[Any]) -> None:
    hook = returning("process_output_stream", lambda args: later(args.part))
    with pytest.raises(
        ProcessorResultError, match=r"'returns'.*process_output_stream at step 0.*make the hook async def"
    ):
        await run(hook, *others)


@pytest.mark.parametrize("hook", [hook for hook in HOOKS if hook != "process_output_stream"])
async def test_what_any_other_plain_hook_returns_may_be_awaited(hook: str) -> None:
    _, result = await run(returning(hook, lambda args: later()))
    assert result.text == "ok"


@pytest.mark.parametrize("hook", HOOKS)
async def test_a_forgotten_await_is_named(hook: str) -> None:
    async def forgets(self: Any, args: Any) -> Any:
        return later()

    with pytest.raises(ProcessorResultError, match=rf"'forgets'.*{hook}.*was not awaited.*`await`"):
        await run(type("Forgets", (Processor,), {hook: forgets})())


async def test_abort_without_a_reason_names_the_processor() -> None:
    quiet = acts("quiet", "process_input", lambda args: args.abort())
    result = await agent(quiet, hook="process_input").generate("go")
    assert result.tripwire is not None
    assert result.tripwire.reason == "processor 'quiet' blocked the run without giving a reason"


async def test_a_retry_without_a_reason_names_the_processor() -> None:
    model = ScriptedModel("one", "two")
    once = acts("once", "process_output_step", lambda args: None if args.retry_count else args.abort(retry=True))
    result = await Agent(model=model, output_processors=[once], max_processor_retries=1).generate("go")
    assert result.text == "two"
    assert "processor 'once' did not accept the answer without giving a reason" in model.requests[-1].text


@pytest.mark.parametrize("on_error", ["fail", "continue"])
@pytest.mark.parametrize("reason", [123, None, {"reason": "no"}])
async def test_abort_with_a_reason_that_is_no_text(reason: Any, on_error: str) -> None:
    wrong = acts("wrong", "process_input", lambda args: args.abort(reason), on_error=on_error)
    with pytest.raises(InputError, match=r"processor 'wrong': abort\(\) takes the reason as a text, not"):
        await agent(wrong, hook="process_input").generate("go")


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"active_tools": ["ad"]}, "processor 'wrong': active_tools: there is no tool 'ad'; tools: weather"),
        ({"tool_choice": "ad"}, "processor 'wrong': tool_choice must be .*, not 'ad'; offered: weather"),
        ({"tools": []}, "processor 'wrong': tool_choice must be .*, not 'weather'; offered: none"),
        ({"active_tools": []}, "processor 'wrong': tool_choice must be .*, not 'weather'; offered: none"),
    ],
)
async def test_names_of_tools_that_a_step_hook_gets_wrong(overrides: dict[str, Any], says: str) -> None:
    wrong = acts("wrong", "process_input_step", lambda args: overrides)
    fine = acts("fine", "process_input_step", lambda args: {"model_settings": ModelSettings(seed=1)})
    with pytest.raises(ConfigError, match=says):
        await agent(wrong, fine, hook="process_input_step").generate("go", tool_choice="weather")
