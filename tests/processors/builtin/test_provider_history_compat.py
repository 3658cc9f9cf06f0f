"""``ProviderHistoryCompat``: adapts a conversation to another provider."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarist import Agent, Memory, Message
from diarist.exceptions import BadRequestError, ConfigError, ProcessorError
from diarist.messages import (
    Prompt,
    PromptMessage,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolPart,
    ToolResultPart,
)
from diarist.processors import CompatRule, ProviderHistoryCompat
from diarist.processors.builtin.provider_history_compat import BUILT_IN_RULES, repair_tool_ids
from diarist.storage import SQLiteStorage
from diarist.testing import Reasoning, ScriptedModel, ToolCall

REFUSED_ID = BadRequestError(
    "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'", provider="anthropic", status=400
)


def scripted(provider: str, name: str = "model") -> ScriptedModel:
    return ScriptedModel("ok", provider=provider, name=name)


def history(*call_ids: str) -> list[Message]:
    calls = [ToolPart(call_id=call_id, name="look", args={}, state="result", result=call_id) for call_id in call_ids]
    return [
        Message.user("look"),
        Message(role="assistant", parts=[*calls, TextPart(text="seen")]),
        Message.user("and?"),
    ]


def sent_ids(model: ScriptedModel, request: int) -> tuple[list[str], list[str]]:
    parts = [part for message in model.requests[request].prompt for part in message.parts]
    return (
        [part.call_id for part in parts if isinstance(part, ToolCallPart)],
        [part.call_id for part in parts if isinstance(part, ToolResultPart)],
    )


# --- repairs after a refusal ----------------------------------------------------------------------------------


async def test_refused_tool_ids_are_repaired_and_the_call_is_retried() -> None:
    model = ScriptedModel(REFUSED_ID, "fine", provider="anthropic")
    agent = Agent(model=model, processors=[ProviderHistoryCompat()])
    result = await agent.generate(history("functions.look:0", "good_1"))
    assert result.text == "fine"
    assert sent_ids(model, 0)[0] == ["functions.look:0", "good_1"]
    calls, results = sent_ids(model, 1)
    assert calls == results
    assert calls[1] == "good_1"
    assert re.fullmatch(r"[a-zA-Z0-9_-]+", calls[0])


async def test_the_repair_of_a_thread_is_stored(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "memory.db")
    first = ScriptedModel(ToolCall("look", {}, id="functions.look:0"), "seen", provider="moonshotai")

    def look() -> str:
        """Look."""
        return "a bird"

    second = ScriptedModel(REFUSED_ID, "a bird", "still a bird", provider="anthropic")
    compat = [ProviderHistoryCompat()]
    async with Agent(model=first, tools=[look], memory=Memory(storage=storage), processors=compat) as agent:
        await agent.generate("look", thread="t")
        await agent.generate("what was it?", thread="t", model=second)
        await agent.generate("and now?", thread="t", model=second)
    assert len(second.requests) == 3
    assert sent_ids(second, 1) == sent_ids(second, 2)
    assert sent_ids(second, 2)[0] != ["functions.look:0"]
    await storage.close()


async def test_other_errors_are_not_handled() -> None:
    model = ScriptedModel(BadRequestError("temperature: too high", status=400), provider="anthropic")
    with pytest.raises(BadRequestError, match="temperature"):
        await Agent(model=model, processors=[ProviderHistoryCompat()]).generate(history("a.b"))
    assert len(model.requests) == 1


async def test_without_a_repair_the_providers_error_is_raised() -> None:
    model = ScriptedModel(REFUSED_ID, REFUSED_ID, provider="anthropic")
    with pytest.raises(BadRequestError, match="tool_use"):
        await Agent(model=model, processors=[ProviderHistoryCompat()]).generate(history("a.b"))
    assert len(model.requests) == 2


IDS = st.lists(st.text(st.sampled_from("ab._-:/é\ud800"), max_size=4), min_size=1, max_size=12)


@given(IDS)
def test_repaired_ids_are_valid_and_never_collide(ids: list[str]) -> None:
    messages = history(*ids)
    repair_tool_ids(messages)
    after = [part.call_id for part in messages[1].tool_parts]
    for new in after:
        assert re.fullmatch(r"[a-zA-Z0-9_-]+", new)
    assert [[a == b for b in ids] for a in ids] == [[a == b for b in after] for a in after]


@given(IDS)
def test_repaired_ids_are_stable(ids: list[str]) -> None:
    one, two = history(*ids), history(*reversed(ids))
    assert repair_tool_ids(one) == repair_tool_ids(two)
    renamed = dict(zip(ids, (part.call_id for part in one[1].tool_parts), strict=True))
    again = dict(zip(reversed(ids), (part.call_id for part in two[1].tool_parts), strict=True))
    assert renamed == again
    assert not repair_tool_ids(one)


# --- custom rules ---------------------------------------------------------------------------------------


async def test_additional_rules_run_after_the_built_in_ones_for_one_call_only() -> None:
    def shout(prompt: Prompt, model: Any) -> Prompt | None:
        if model.provider != "loud":
            return None
        return Prompt(messages=[PromptMessage(role="user", parts=[TextPart(text=prompt.text.upper())])])

    model = scripted("loud")
    compat = ProviderHistoryCompat(additional_rules=[CompatRule(name="shout", apply_to_prompt=shout)])
    result = await Agent(model=model, input_processors=[compat]).generate("hello")
    assert "HELLO" in model.requests[0].text
    assert result.text == "ok"
    assert "HELLO" not in str([message.text for message in result.messages])


async def test_a_custom_repair_sees_the_stored_messages() -> None:
    def fix(messages: list[Message]) -> bool:
        for message in messages:
            for part in message.parts:
                if isinstance(part, TextPart):
                    part.text = part.text.replace("☃", "snowman")
        return True

    model = ScriptedModel(BadRequestError("no emoji", body='{"code": "EMOJI_42"}', status=400), "ok")
    rule = CompatRule(name="no-snow", error_patterns=["emoji_42"], fix=fix)
    await Agent(model=model, error_processors=[ProviderHistoryCompat(additional_rules=[rule])]).generate("☃")
    assert "snowman" in model.requests[1].text


async def test_a_failing_prompt_rule_is_named() -> None:
    rule = CompatRule(name="rude", apply_to_prompt=lambda prompt, model: 1 / 0)  # type: ignore[arg-type,return-value]
    agent = Agent(model=scripted("x"), processors=[ProviderHistoryCompat(additional_rules=[rule])])
    with pytest.raises(ProcessorError, match="'rude' failed: ZeroDivisionError") as caught:
        await agent.generate("hi")
    assert (caught.value.processor_id, caught.value.hook) == ("provider-history-compat", "process_llm_request")


def _boom(messages: list[Message]) -> bool:
    raise RuntimeError("broken rule")


async def test_a_failing_error_rule_is_named() -> None:
    rule = CompatRule(name="mine", error_patterns=["nope"], fix=_boom)
    agent = Agent(
        model=ScriptedModel(BadRequestError("nope", status=400)),
        processors=[ProviderHistoryCompat(additional_rules=[rule])],
    )
    with pytest.raises(ProcessorError, match=r"'mine' failed.*broken rule"):
        await agent.generate("hi")


async def test_a_rule_repairs_once_per_step() -> None:
    rule = CompatRule(name="mine", error_patterns=["nope"], fix=lambda messages: True)
    model = ScriptedModel(*(BadRequestError("nope", status=400) for _ in range(5)))
    agent = Agent(model=model, processors=[ProviderHistoryCompat(additional_rules=[rule])])
    with pytest.raises(BadRequestError, match="nope"):
        await agent.generate("hi")
    assert len(model.requests) == 2


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: CompatRule(name="x"), "does nothing"),
        (lambda: CompatRule(name="x", fix=_boom), "give both fix and error_patterns"),
        (
            lambda: CompatRule(name="x", error_patterns=["a"], apply_to_prompt=lambda p, m: None),
            "give both fix and error_patterns",
        ),
        (lambda: CompatRule(name="x", error_patterns=["("], fix=_boom), "not a valid pattern"),
        (lambda: ProviderHistoryCompat(additional_rules=["x"]), "not a CompatRule"),  # type: ignore[list-item]
        (
            lambda: ProviderHistoryCompat(
                additional_rules=[CompatRule(name="anthropic-tool-id-format", apply_to_prompt=lambda p, m: None)]
            ),
            "two rules",
        ),
    ],
)
def test_an_invalid_rule_is_refused_at_construction(make: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make()


# --- the built-in rules for prompts ---------------------------------------------------------------------------


def thought(text: str, provider: str | None, signature: str | None = None, **more: Any) -> ReasoningPart:
    return ReasoningPart(text=text, provider=provider, signature=signature, **more)


def said(text: str, **more: Any) -> TextPart:
    return TextPart(text=text, **more)


def apply(name: str, given: Prompt, model: ScriptedModel) -> Prompt | None:
    (rule,) = (rule.apply_to_prompt for rule in BUILT_IN_RULES if rule.name == name)
    assert rule is not None
    return rule(given, model)


def prompt(*turns: tuple[str, list[Any]]) -> Prompt:
    return Prompt(messages=[PromptMessage(role=role, parts=parts) for role, parts in turns])  # type: ignore[arg-type]


def shape(result: Prompt | None) -> list[tuple[str, list[str]]] | None:
    if result is None:
        return None
    return [
        (m.role, [p.text if isinstance(p, TextPart | ReasoningPart) else p.call_id for p in m.parts]) for m in result
    ]


TALK = (
    ("user", [said("q")]),
    ("assistant", [thought("hm", "openai", "sig"), said("a")]),
    ("assistant", [thought("only", "openai", "sig")]),
    ("user", [said("q2")]),
)


def test_cerebras_gets_no_reasoning() -> None:
    assert apply("cerebras-strip-reasoning-content", prompt(*TALK), scripted("openai")) is None
    assert shape(apply("cerebras-strip-reasoning-content", prompt(*TALK), scripted("cerebras"))) == [
        ("user", ["q"]),
        ("assistant", ["a"]),
        ("user", ["q2"]),
    ]


@pytest.mark.parametrize(
    ("model", "kept"),
    [
        (scripted("anthropic"), ["own"]),
        (scripted("bedrock", "us.anthropic.claude-sonnet-5"), ["own"]),
        (scripted("google-cloud", "claude-sonnet-5"), ["own", "from google"]),
    ],
    ids=lambda value: value.id if isinstance(value, ScriptedModel) else "",
)
def test_anthropic_gets_its_own_reasoning_only(model: ScriptedModel, kept: list[str]) -> None:
    parts = [thought("own", "anthropic", "s"), thought("from google", "google-vertex", "s"), thought("nobody's", None)]
    changed = apply("anthropic-strip-foreign-reasoning-content", prompt(("assistant", [*parts, said("a")])), model)
    assert shape(changed) == [("assistant", [*kept, "a"])]
    assert changed is not None
    assert apply("strip-foreign-signed-reasoning", changed, model) is None, "no rule takes away what another one keeps"


def test_other_providers_get_unsigned_reasoning() -> None:
    assert apply("anthropic-strip-foreign-reasoning-content", prompt(*TALK), scripted("bedrock", "llama")) is None
    assert apply("strip-foreign-signed-reasoning", prompt(*TALK), scripted("openai-responses")) is None
    assert (
        apply("strip-foreign-signed-reasoning", prompt(("assistant", [thought("t", "deepseek")])), scripted("openai"))
        is None
    )
    assert shape(apply("strip-foreign-signed-reasoning", prompt(*TALK), scripted("google"))) == [
        ("user", ["q"]),
        ("assistant", ["a"]),
        ("user", ["q2"]),
    ]


def test_empty_signed_reasoning_stays_only_in_the_current_turn() -> None:
    empty, redacted = (
        thought("", "anthropic", "s"),
        thought("", "anthropic", "x", provider_data={"id": "redacted_thinking"}),
    )
    call = ToolCallPart(call_id="c", name="t", args={})
    given = prompt(
        ("user", [said("q")]),
        ("assistant", [empty, redacted, said("a")]),
        ("user", [said("q2")]),
        ("assistant", [empty, call]),
        ("tool", [ToolResultPart(call_id="c", name="t", text="r")]),
    )
    changed = apply("anthropic-strip-empty-signed-reasoning-content", given, scripted("anthropic"))
    assert changed is not None
    assert changed.messages[1].parts == [redacted, said("a")]
    assert changed.messages[3].parts == [empty, call]
    assert apply("anthropic-strip-empty-signed-reasoning-content", given, scripted("openai")) is None


@pytest.mark.parametrize(
    ("call", "model", "stays"),
    [
        (
            ToolCallPart(
                call_id="ws_1", name="search", args={}, provider_executed=True, provider_data={"provider": "openai"}
            ),
            "openai-responses",
            True,
        ),
        (
            ToolCallPart(
                call_id="ws_1", name="search", args={}, provider_executed=True, provider_data={"provider": "openai"}
            ),
            "anthropic",
            False,
        ),
        (
            ToolCallPart(
                call_id="1", name="code", args={}, provider_executed=True, provider_data={"provider": "google-gla"}
            ),
            "google",
            True,
        ),
        (ToolCallPart(call_id="1", name="code", args={}, provider_executed=True), "google", False),
        (ToolCallPart(call_id="1", name="mine", args={}), "google", True),
    ],
)
def test_calls_of_foreign_provider_tools_are_removed_with_results(call: ToolCallPart, model: str, stays: bool) -> None:
    result = ToolResultPart(call_id=call.call_id, name=call.name, text="found")
    given = prompt(("user", [said("q")]), ("assistant", [said("a"), call]), ("tool", [result]), ("user", [said("q2")]))
    changed = apply("strip-foreign-provider-tools", given, scripted(model))
    if stays:
        assert changed is None
    else:
        assert shape(changed) == [("user", ["q"]), ("assistant", ["a"]), ("user", ["q2"])]


def test_the_prompt_marks_provider_executed_calls() -> None:
    from diarist.prompting import build_prompt

    ran = ToolPart(call_id="c", name="search", args={}, state="result", result="r", provider_executed=True)
    built = build_prompt([], [Message(role="assistant", parts=[ran])])
    assert isinstance(call := built.messages[0].parts[0], ToolCallPart)
    assert call.provider_executed


def test_item_ids_of_openai_without_reasoning_are_removed() -> None:
    data = {"provider": "openai", "id": "msg_1", "details": {"phase": "final"}}
    alone = {"provider": "openai", "id": "fc_1"}
    call = ToolCallPart(call_id="c", name="t", args={}, provider_data=alone)
    orphaned = prompt(("assistant", [said("a", provider_data=data), call]))
    changed = apply("openai-drop-orphaned-item-ids", orphaned, scripted("openai-responses"))
    assert changed is not None
    text, called = changed.messages[0].parts
    assert isinstance(text, TextPart)
    assert text.provider_data == {"provider": "openai", "details": {"phase": "final"}}
    assert isinstance(called, ToolCallPart)
    assert called.provider_data is None
    whole = prompt(("assistant", [thought("t", "openai", "s"), said("a", provider_data=data)]))
    assert apply("openai-drop-orphaned-item-ids", whole, scripted("openai-responses")) is None
    assert apply("openai-drop-orphaned-item-ids", orphaned, scripted("anthropic")) is None


def test_the_cache_breakpoint_of_a_removed_message_moves_back() -> None:
    given = prompt(*TALK)
    given.messages[2].cache = True
    changed = apply("cerebras-strip-reasoning-content", given, scripted("cerebras"))
    assert changed is not None
    assert [message.cache for message in changed] == [False, True, False]


async def test_each_provider_of_a_thread_gets_what_it_accepts() -> None:
    first = ScriptedModel([Reasoning("secret thoughts", signature="sig"), "Four."], provider="openai")
    second = ScriptedModel("Five.", provider="anthropic")
    agent = Agent(model=first, processors=[ProviderHistoryCompat()])
    answer = await agent.generate("2+2?")
    await agent.generate([Message.user("2+2?"), *answer.messages, Message.user("and one more?")], model=second)
    assert "secret thoughts" not in second.requests[0].text
    assert "Four." in second.requests[0].text
