"""``Sequence``, ``Parallel`` and ``Branch``: in every hook, nested, and who may change what."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from diarist import Agent, DataChunk, Message, Processor
from diarist.chunks import TextDelta, TextPayload
from diarist.exceptions import ConfigError, ProcessorError, ProcessorResultError
from diarist.messages import Prompt, PromptMessage, TextPart
from diarist.processors.compose import Branch, Parallel, Sequence
from diarist.testing import Reply, ScriptedModel, ToolCall
from tests.agent.kit import run_both, streamed_text

HOOKS = {
    "process_input": "input_processors",
    "process_input_step": "input_processors",
    "process_llm_request": "input_processors",
    "process_llm_response": "input_processors",
    "process_output_stream": "output_processors",
    "process_output_step": "output_processors",
    "process_tool_call": "output_processors",
    "process_tool_result": "output_processors",
    "process_output_result": "output_processors",
    "process_api_error": "error_processors",
}


def acts(id: str, hook: str, do: Any, **attributes: Any) -> Processor[Any]:
    """A processor that does ``do(args)`` in one hook; in the stream only at text."""

    async def method(self: Any, args: Any) -> Any:
        if hook == "process_output_stream" and args.part.type != "text-delta":
            return args.part
        result = do(args)
        if asyncio.iscoroutine(result):
            result = await result
        return args.part if result is None and hook == "process_output_stream" else result

    return type("Acts", (Processor,), {hook: method, "id": id, **attributes})()


def weather(city: str) -> str:
    """The weather."""
    return f"sunny in {city}"


def agent(*processors: Processor[Any], hook: str = "process_output_step", **more: Any) -> Agent:
    """Calls a tool, fails once where errors are to be handled, and answers."""
    first: Any = RuntimeError("down") if hook == "process_api_error" else ToolCall("weather", {"city": "Rome"})
    model = ScriptedModel(first, "said", "said")
    return Agent(model=model, tools=[weather], **{HOOKS[hook]: list(processors)}, **more)


def edits(hook: str, mark: str) -> Any:
    """A function that makes a change which ``seen`` finds again."""

    def text(message: Message) -> Message:
        for part in message.parts:
            if isinstance(part, TextPart):
                part.text += mark
        return message

    def prompt(args: Any) -> Prompt:
        return Prompt(messages=[*args.prompt, PromptMessage(role="user", parts=[TextPart(text=mark)])])

    def messages(args: Any) -> list[Message]:
        return [*args.messages[:-1], text(args.messages[-1])]

    return {
        "process_input": messages,
        "process_input_step": lambda args: {"system_messages": [*args.system_messages, mark]},
        "process_llm_request": prompt,
        "process_output_stream": lambda args: TextDelta(payload=TextPayload(text=args.part.payload.text + mark)),
        "process_output_step": messages,
        "process_tool_call": lambda args: {"args": {"city": args.call.args["city"] + mark}},
        "process_tool_result": lambda args: {"result": args.call.result + mark},
        "process_output_result": messages,
        "process_api_error": lambda args: {"retry": True},
    }[hook]


EDITING = [hook for hook in HOOKS if hook not in ("process_llm_response", "process_api_error")]


async def everything(agent: Agent) -> str:
    """All that a run showed: prompts, and the result."""
    result = await agent.generate("hello")
    prompts = "\n".join(request.text for request in agent.model.requests)  # type: ignore[attr-defined]
    return prompts + result.text


@pytest.mark.parametrize("hook", EDITING)
async def test_a_sequence_is_like_the_list(hook: str) -> None:
    parts = [acts("a", hook, edits(hook, "-A")), acts("b", hook, edits(hook, "-B"))]
    as_list = await everything(agent(*parts, hook=hook))
    nested = Sequence(Sequence(parts[0], id="one"), Branch((lambda args: True, Sequence(parts[1], id="two"))))
    assert await everything(agent(nested, hook=hook)) == as_list
    assert "-A" in as_list
    assert as_list.find("-A") < as_list.find("-B")


@pytest.mark.parametrize("hook", list(HOOKS))
@pytest.mark.parametrize("composition", ["sequence", "parallel", "branch"])
async def test_every_hook_can_block_from_inside(hook: str, composition: str) -> None:
    inner = acts("inner", hook, lambda args: args.abort("no", metadata=1))
    other = acts("other", hook, lambda args: None)
    whole = {
        "sequence": lambda: Sequence(other, Sequence(inner, id="deep")),
        "parallel": lambda: Parallel(other, Sequence(inner)),
        "branch": lambda: Branch((lambda args: False, other), (lambda args: True, Parallel(inner))),
    }[composition]
    result, chunks = await run_both(lambda: agent(whole(), hook=hook))
    assert result.tripwire is not None
    assert (result.tripwire.processor_id, result.tripwire.hook, result.tripwire.metadata) == ("inner", hook, 1)
    assert chunks[-1].type == "tripwire"


@pytest.mark.parametrize("hook", EDITING)
async def test_branches_may_not_edit_without_a_merge(hook: str) -> None:
    whole = Parallel(acts("looks", hook, lambda args: None), acts("edits", hook, edits(hook, "-X")))
    with pytest.raises(ProcessorResultError, match=rf"parallel.*{hook}.*no merge"):
        await agent(whole, hook=hook).generate("hello")


@pytest.mark.parametrize("hook", ["process_input", "process_llm_request", "process_tool_call", "process_output_stream"])
async def test_an_edit_in_place_is_an_edit_as_well(hook: str) -> None:
    def sneak(args: Any) -> None:
        match hook:
            case "process_input":
                args.messages[0].parts[0].text = "sneaked"
            case "process_llm_request":
                args.prompt.messages[0].parts[0].text = "sneaked"
            case "process_tool_call":
                args.call.args["city"] = "sneaked"
            case _:
                args.part.payload.text = "sneaked"

    whole = Parallel(acts("looks", hook, lambda args: None), acts("sneaks", hook, sneak))
    with pytest.raises(ProcessorResultError, match="no merge"):
        await agent(whole, hook=hook).generate("hello")


@pytest.mark.parametrize("hook", EDITING)
async def test_a_merge_decides(hook: str) -> None:
    outcomes: list[Any] = []

    async def last(results: list[Any]) -> Any:
        outcomes.extend(results)
        return results[-1]

    whole = Parallel(acts("a", hook, edits(hook, "-A")), acts("b", hook, edits(hook, "-B")), merge=last)
    seen = await everything(agent(whole, hook=hook))
    assert "-B" in seen
    assert "-A" not in seen
    assert len(outcomes) % 2 == 0


async def test_a_denied_call_stays_denied_after_a_merge() -> None:
    deny = acts("deny", "process_tool_call", lambda args: {"deny": "no"})
    looks = [acts(name, "process_tool_result", lambda args: None) for name in ("a", "b")]
    whole = agent(deny, Parallel(*looks, merge=lambda results: results[0]), hook="process_tool_result")
    (call,) = (await whole.generate("hello")).steps[0].tool_calls
    assert (call.state, call.result) == ("denied", "no")


async def test_a_merge_that_fails_is_named() -> None:
    def broken(results: list[Any]) -> Any:
        raise ValueError("cannot decide")

    for hook in ("process_output_step", "process_output_stream"):
        whole = Parallel(acts("a", hook, lambda args: None), merge=broken)
        with pytest.raises(ProcessorError, match=rf"parallel.*{hook}.*cannot decide"):
            await agent(whole, hook=hook).generate("hello")


async def test_branches_run_side_by_side_and_the_first_tripwire_cancels_the_others() -> None:
    started, cancelled = asyncio.Event(), []

    async def slow(args: Any) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(args.processor_id)
            raise

    async def blocks(args: Any) -> None:
        await started.wait()
        args.abort("no")

    whole = Parallel(
        acts("one", "process_input", slow),
        Sequence(acts("two", "process_input", slow)),
        acts("b", "process_input", blocks),
    )
    result = await agent(whole, hook="process_input").generate("hello")
    assert result.stopped_by == "tripwire"
    assert sorted(cancelled) == ["one", "two"]


async def test_what_earlier_processors_changed_is_no_change_of_the_branches() -> None:
    hook = "process_input_step"
    before = acts("before", hook, lambda args: {"tool_choice": "none", "system_messages": ["first"]})
    seen: list[str] = []
    whole = Parallel(acts("looks", hook, lambda args: seen.append(args.tool_choice)))
    await Agent(model=ScriptedModel("ok"), input_processors=[before, whole]).generate(
        [Message.user("hello", metadata={"when": (1, 2)})]
    )
    assert seen == ["none"]


async def test_in_a_branch_later_parts_see_what_earlier_ones_changed() -> None:
    seen: list[tuple[str, str]] = []
    for hook, text in (("process_output_step", "text"), ("process_output_result", "result")):

        def look(args: Any, text: str = text) -> None:
            value = args.text if text == "text" else args.result.text
            seen.append((text, value))

        chain = Sequence(acts("edits", hook, edits(hook, "-X")), acts("looks", hook, look))
        whole = Parallel(chain, merge=lambda results: results[0])
        result = await Agent(model=ScriptedModel("said"), output_processors=[whole]).generate("hello")
        assert result.text == "said-X"
    assert seen == [("text", "said-X"), ("result", "said-X")]


async def test_the_condition_sees_the_hooks_arguments_and_the_first_that_holds_wins() -> None:
    log: list[str] = []

    def note(name: str) -> Processor[Any]:
        return acts(name, "process_input_step", lambda args: log.append(f"{name}{args.step_number}"))

    async def is_first(args: Any) -> bool:
        return args.step_number == 0

    branch = Branch((is_first, note("a")), (lambda args: args.step_number == 0, note("b")), default=note("c"))
    await agent(branch, hook="process_input_step").generate("hello")
    assert log == ["a0", "c1"]


async def test_without_a_default_nothing_runs() -> None:
    branch = Branch((lambda args: False, acts("a", "process_input", lambda args: args.abort("no"))))
    assert (await agent(branch, hook="process_input").generate("hello")).stopped_by == "answer"


async def test_a_condition_that_fails_is_named() -> None:
    def broken(args: Any) -> bool:
        raise ValueError("cannot tell")

    for hook in ("process_output_step", "process_output_stream"):
        branch = Branch((broken, acts("a", hook, lambda args: None)))
        with pytest.raises(ProcessorError, match=rf"branch.*{hook}.*cannot tell"):
            await agent(branch, hook=hook).generate("hello")


async def test_stream_branches_run_in_lock_step_in_listed_order() -> None:
    log: list[str] = []

    def note(name: str) -> Processor[Any]:
        async def look(args: Any) -> None:
            await asyncio.sleep(0)
            log.append(f"{name}:{args.part.payload.text}")

        return acts(name, "process_output_stream", look)

    model = ScriptedModel(["x", "y"])
    result = await Agent(model=model, output_processors=[Parallel(note("a"), note("b"))]).generate("hello")
    assert log == ["a:x", "b:x", "a:y", "b:y"]
    assert result.text == "xy"


async def test_a_branch_of_a_stream_may_drop_and_multiply_in_a_sequence() -> None:
    drop = acts("drop", "process_output_stream", lambda args: [] if args.part.payload.text == "b" else args.part)
    twice = acts("twice", "process_output_stream", lambda args: [args.part, args.part])
    whole = Branch((lambda args: args.part.type == "text-delta", Sequence(drop, twice)))
    result, chunks = await run_both(lambda: Agent(model=ScriptedModel(["a", "b", "c"]), output_processors=[whole]))
    assert (result.text, streamed_text(chunks)) == ("aacc", "aacc")


async def test_data_parts_reach_only_parts_that_want_them() -> None:
    seen: list[str] = []

    class Looks(Processor[Any]):
        def process_output_stream(self, args: Any) -> Any:
            seen.append(f"{self.id}:{args.part.type}")
            return args.part

    def looks(id: str, wants: bool) -> Processor[Any]:
        found = Looks()
        found.id, found.process_data_parts = id, wants
        return found

    writes = acts("writes", "process_input", lambda args: args.writer.custom(DataChunk("data-x", 1)))
    whole = [
        Sequence(looks("a", True), looks("b", False)),
        Branch((lambda args: seen.append("asked"), looks("c", False))),
    ]
    await Agent(model=ScriptedModel("ok"), input_processors=[writes], output_processors=whole).generate("hello")
    assert "a:data-x" in seen
    assert "b:data-x" not in seen
    assert seen.index("a:data-x") + 1 < len(seen)
    assert seen[seen.index("a:data-x") + 1] != "asked", "the condition of a branch without data parts is not asked"


async def test_parts_keep_their_state_over_hooks_and_retries() -> None:
    class Counts(Processor[Any]):
        def create_state(self) -> list[str]:
            return []

        def process_input(self, args: Any) -> None:
            args.state.append("input")

        def process_output_step(self, args: Any) -> None:
            args.state.append("step")
            states[self.id] = list(args.state)
            if args.retry_count == 0:
                args.abort("again", retry=True)

    states: dict[str, list[str]] = {}
    whole = Sequence(Branch((lambda args: True, Counts())))
    agent = Agent(model=ScriptedModel(lambda request: "ok"), processors=[whole], max_processor_retries=1)
    for _ in range(2):
        await agent.generate("hello")
        assert states == {"counts": ["input", "step", "step"]}


async def test_hold_output_of_a_part_is_the_compositions() -> None:
    def judge(args: Any) -> None:
        if "BAD" in args.text:
            args.abort("say GOOD", retry=True)

    guard = acts("guard", "process_output_step", judge, hold_output=True)
    model = ScriptedModel("BAD", "GOOD")
    agent = Agent(model=model, output_processors=[Sequence(Branch((lambda a: True, guard)))], max_processor_retries=1)
    async with agent.stream("hello") as stream:
        assert [piece async for piece in stream.text()] == ["GOOD"]


def test_ids() -> None:
    a, b = acts("a", "process_input", None), acts("b", "process_input", None)
    assert Sequence(a, b).id == "sequence(a,b)"
    assert Parallel(a, id="mine").id == "mine"
    model = ScriptedModel()
    Agent(model=model, input_processors=[Sequence(a), Parallel(b)])
    for twice in ([a, Sequence(a)], [Sequence(a, id="x"), Branch((lambda args: True, a), id="y")], [Parallel(a, a)]):
        with pytest.raises(ConfigError, match="'a'"):
            Agent(model=model, input_processors=twice)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Sequence(),
        lambda: Parallel(),
        lambda: Branch(),
        lambda: Sequence("x"),  # type: ignore[arg-type]
        lambda: Branch(acts("a", "process_input", None)),  # type: ignore[arg-type]
        lambda: Branch((True, acts("a", "process_input", None))),  # type: ignore[arg-type]
        lambda: Branch((lambda args: True, "x")),  # type: ignore[arg-type,return-value]
        lambda: Branch(default=None),
    ],
)
def test_what_cannot_be_put_together(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()


async def test_an_error_repair_inside_a_composition() -> None:
    repair = acts("repair", "process_api_error", lambda args: {"retry": True})
    model = ScriptedModel(RuntimeError("down"), Reply(text="ok"))
    result = await Agent(model=model, error_processors=[Branch((lambda args: True, Sequence(repair)))]).generate("hi")
    assert result.text == "ok"
