"""``TokenLimiter``: the prompt stays under its limit, is cut rarely, and the storage is unchanged."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diarist import Agent, Memory, Message, tool
from diarist.exceptions import ConfigError
from diarist.messages import ToolCallPart, ToolPart, ToolResultPart
from diarist.models.base import ModelRequest
from diarist.processors import TokenLimiter
from diarist.storage import InMemoryStorage
from diarist.testing import ScriptedModel, ToolCall
from diarist.tokens import default_counter
from tests.agent.kit import run_both, streamed_text
from tests.processors.builtin.kit import Past, shown, turn, with_tool
from tests.properties import examples


def tokens(request: ModelRequest) -> int:
    return sum(default_counter().count(message.text) for message in request.prompt)


def is_paired(request: ModelRequest) -> bool:
    calls = [part for message in request.prompt for part in message.parts if isinstance(part, ToolCallPart)]
    results = [part for message in request.prompt for part in message.parts if isinstance(part, ToolResultPart)]
    return [call.call_id for call in calls] == [result.call_id for result in results]


async def ask(limiter: TokenLimiter, past: list[Message], text: str = "now") -> ModelRequest:
    model = ScriptedModel("ok")
    agent = Agent(model=model, instructions="Be kind.", input_processors=[Past(*past), limiter])
    result = await agent.generate(text)
    assert result.tripwire is None
    return model.requests[0]


async def test_old_messages_leave_the_prompt_and_stay_in_storage() -> None:
    storage = InMemoryStorage()
    model = ScriptedModel(lambda request: "answer" + " word" * 50)
    agent = Agent(model=model, memory=Memory(storage=storage), input_processors=[TokenLimiter(400)])
    for number in range(12):
        await agent.generate(f"question {number}" + " word" * 50, thread="t")
    assert all(tokens(request) <= 400 for request in model.requests)
    assert shown(model.requests[-1].text, [0, 11]) == [11]
    assert len(await storage.list_messages("t")) == 24


async def test_the_window_is_cut_rarely_so_that_prompts_share_a_prefix() -> None:
    model = ScriptedModel(lambda request: "answer" + " word" * 20)
    agent = Agent(
        model=model,
        memory=Memory(storage=InMemoryStorage(), last_messages=1000),
        input_processors=[TokenLimiter(600)],
        instructions="Hi.",
    )
    for number in range(40):
        await agent.generate(f"question {number}" + " word" * 20, thread="t")
    begins = [shown(request.text, range(40))[0] for request in model.requests]
    hops = [begin for before, begin in pairwise(begins) if begin != before]
    assert begins == sorted(begins)
    assert 4 <= len(hops) <= 12, begins
    kept = [a.text == b.text[: len(a.text)] for a, b in pairwise(model.requests)]
    assert kept.count(False) == len(hops)


async def test_another_process_cuts_at_the_same_place() -> None:
    storage = InMemoryStorage()
    model = ScriptedModel(lambda request: "answer" + " word" * 20)
    prompts: list[str] = []
    for number in range(40):
        limiter = TokenLimiter(600)  # nothing but storage is shared between two calls
        agent = Agent(model=model, memory=Memory(storage=storage, last_messages=1000), input_processors=[limiter])
        await agent.generate(f"question {number}" + " word" * 20, thread="t")
        prompts.append(model.requests[-1].text)
    kept = sum(b.startswith(a) for a, b in pairwise(prompts))
    assert kept >= 27


message_sizes = st.lists(st.integers(0, 120), max_size=14)


@given(sizes=message_sizes, limit=st.integers(60, 500), trim=st.sampled_from(["best-fit", "contiguous"]))
@settings(max_examples=examples(60), deadline=None)
async def test_the_limit_holds_and_pairs_stay_together(sizes: list[int], limit: int, trim: Any) -> None:
    past: list[Message] = []
    for number, size in enumerate(sizes):
        past += turn(number, size)
        if size % 3 == 0:
            past.append(with_tool(number, result="word " * size))
    request = await ask(TokenLimiter(limit, trim=trim), past)
    assert tokens(request) <= limit
    assert is_paired(request)
    assert request.prompt.messages[-1].text == "now"
    assert request.prompt.messages[0].role == "system"
    ids = [message.message_id for message in request.prompt if message.message_id]
    order = [message.id for message in past]
    assert [order.index(i) for i in ids if i in order] == sorted(order.index(i) for i in ids if i in order)


@pytest.mark.parametrize(("trim", "expected"), [("best-fit", [1, 2, 4]), ("contiguous", [4])])
async def test_best_fit_skips_one_huge_message_and_contiguous_stops(trim: Any, expected: list[int]) -> None:
    past = [*turn(1), *turn(2), *turn(3, 500), *turn(4)]
    past = [message for message in past if message.id != "q3"]
    request = await ask(TokenLimiter(300, trim=trim), past)
    assert shown(request.text, [1, 2, 4]) == expected
    assert "word word word" not in request.text


async def test_no_question_stays_without_an_answer() -> None:
    past = [Message.user("question 1"), Message.assistant("answer" + " word" * 200), *turn(2)]
    request = await ask(TokenLimiter(150), past)
    assert shown(request.text, [1, 2]) == [2]


@tool
def look() -> str:
    """Look."""
    return "seen " * 60


async def test_the_current_run_is_never_cut() -> None:
    model = ScriptedModel(*[ToolCall("look")] * 3, "done")
    limiter = TokenLimiter(320)
    past = [message for number in range(6) for message in turn(number, 20)]
    agent = Agent(model=model, tools=[look], input_processors=[Past(*past), limiter])
    result = await agent.generate("look around")
    assert result.text == "done"
    last = model.requests[-1]
    assert last.text.count("seen") == 180
    assert "look around" in last.text
    assert "question 0" not in last.text


async def test_a_prompt_that_cannot_be_cut_blocks_with_the_numbers() -> None:
    def make() -> Agent:
        limiter = TokenLimiter(50)
        return Agent(model=ScriptedModel("never"), instructions="word " * 30, input_processors=[limiter])

    result, _ = await run_both(make, "word " * 40)
    assert result.tripwire is not None
    assert result.tripwire.hook == "process_llm_request"
    assert result.tripwire.metadata == {"limit": 50, "system": 31, "run": 41}
    assert "31 tokens" in result.tripwire.reason


async def test_a_call_answered_by_this_input_stays() -> None:
    call = ToolPart(call_id="c1", name="ask_user", args={"about": "word " * 10})
    past = [*turn(1, 30), Message(role="assistant", parts=[call], id="pending"), *turn(2, 30)]
    answer = Message(
        role="tool", parts=[ToolPart(call_id="c1", name="ask_user", args={}, state="result", result="yes")]
    )
    model = ScriptedModel("ok")
    agent = Agent(model=model, input_processors=[Past(*past), TokenLimiter(60)])
    assert (await agent.generate([answer])).text == "ok"
    assert "yes" in model.requests[0].text
    assert is_paired(model.requests[0])


async def test_other_encodings_and_counters_are_used() -> None:
    class Letters:
        name = "letters"

        def count(self, text: str) -> int:
            return len(text)

    past = [Message.user("a" * 40), Message.assistant("b" * 40), Message.user("c" * 5), Message.assistant("d" * 5)]
    request = await ask(TokenLimiter(60, encoding=Letters()), past)
    assert "a" * 40 not in request.text
    assert "c" * 5 in request.text


# --- answers


@pytest.mark.parametrize("pieces", [["one two three four five six"], list("one two three four five six")])
async def test_an_answer_can_be_truncated(pieces: list[str]) -> None:
    def make() -> Agent:
        return Agent(model=ScriptedModel(pieces), output_processors=[TokenLimiter(1000, output_limit=3)])

    result, chunks = await run_both(make)
    assert result.text == streamed_text(chunks) == "one two three"


async def test_a_long_answer_is_counted_correctly() -> None:
    text = "some words of an answer, " * 200
    pieces = [text[i : i + 7] for i in range(0, len(text), 7)]
    limiter = TokenLimiter(1000, output_limit=600)
    result = await Agent(model=ScriptedModel(pieces), output_processors=[limiter]).generate("?")
    assert text.startswith(result.text)
    assert 590 <= default_counter().count(result.text) <= 600


async def test_a_too_long_answer_can_block() -> None:
    limiter = TokenLimiter(1000, output_limit=3, output_strategy="abort")
    result = await Agent(model=ScriptedModel("one two three four"), output_processors=[limiter]).generate("?")
    assert result.tripwire is not None
    assert result.tripwire.metadata == {"output_limit": 3}


async def test_each_step_has_its_own_output_limit() -> None:
    model = ScriptedModel(["one two three", ToolCall("look")], "four five six")
    agent = Agent(model=model, tools=[look], output_processors=[TokenLimiter(1000, output_limit=3)])
    result = await agent.generate("?")
    assert [step.text for step in result.steps] == ["one two three", "four five six"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 0}, "TokenLimiter: limit must be more than 0, not 0"),
        ({"limit": 9, "trim": "all"}, "TokenLimiter: trim must be one of"),
        ({"limit": 9, "output_limit": -1}, "TokenLimiter: output_limit must be more than 0"),
        ({"limit": 9, "output_strategy": "cut"}, "TokenLimiter: output_strategy must be one of"),
        ({"limit": 9, "encoding": "o300k"}, "TokenLimiter: encoding 'o300k' is unknown; known: .*cl100k_base"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TokenLimiter(**options)


def test_an_encoding_that_cannot_be_downloaded_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")  # no server listens there
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="TokenLimiter: encoding 'p50k_base' cannot be downloaded") as caught:
        TokenLimiter(9, encoding="p50k_base")
    assert "Offline, use 'o200k_base', which is part of diarist, or set TIKTOKEN_CACHE_DIR" in str(caught.value)
