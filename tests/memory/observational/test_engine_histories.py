"""Whatever happens to a thread, in whatever order: every row is raw or covered, once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from diarist.exceptions import ModelConnectionError
from diarist.storage import InMemoryStorage
from tests.memory.observational.harness import (
    Conversation,
    assert_exactly_once,
    ids,
    prepare_step,
    small_config,
    tool_step,
    user,
)
from tests.properties import examples

turns = st.fixed_dictionaries(
    {
        "input": st.integers(1, 60),
        "steps": st.lists(st.integers(3, 60), max_size=5),
        "observer": st.sampled_from(["works", "works", "fails"]),
        "end": st.sampled_from(["committed", "committed", "committed", "discarded", "interrupted"]),
        "crash": st.booleans(),
        "guarded": st.booleans(),
        "wait": st.sampled_from([0, 700]),
        "settles": st.sampled_from(["never", "at the end", "at each step", "after the end"]),
    }
)


async def play(chat: Conversation, number: int, turn: dict[str, object]) -> None:
    """One run, from its input to its end; with ``crash`` the log hears nothing of the end."""
    chat.observer.fail = ModelConnectionError("down") if turn["observer"] == "fails" else None
    chat.clock.advance(turn["wait"])  # type: ignore[arg-type]
    run = await chat.begin(user(f"u{number}", turn["input"]), guarded=turn["guarded"])  # type: ignore[arg-type]
    memory = await chat.open(run)
    newest: set[str] = set()
    for step, words in enumerate(turn["steps"]):  # type: ignore[arg-type, var-annotated]
        await prepare_step(memory, step, pinned={f"u{number}", *newest})
        window = ids(memory.window.messages())
        assert memory.window.messages()[0].role == "user"
        assert {f"u{number}", *newest} <= set(window)
        newest = {f"u{number}s{step}"}
        memory.window.add(await chat.store(run, tool_step(f"u{number}s{step}", words)))
        if turn["settles"] == "at each step":
            await chat.settled()
    if turn["settles"] == "at the end":
        await chat.settled()
    end = turn["end"]
    if end == "discarded" and not turn["crash"]:
        await chat.drop_run(run.id)
    await chat.storage.finish_run(run, end)  # type: ignore[arg-type]
    if end != "discarded" and not turn["crash"]:
        await chat.close_run(run.id)
    if end == "committed":
        memory.buffer_when_due()
    if turn["settles"] == "after the end":
        await chat.settled()


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(turns, min_size=1, max_size=12), st.sampled_from([False, 15, 30]))
async def test_every_row_is_raw_or_covered_once(history: list[dict[str, object]], buffer_tokens: float) -> None:
    chat = Conversation(InMemoryStorage(), config=small_config(100, 40, buffer_tokens=buffer_tokens))
    chat.observer.words = 4
    for number, turn in enumerate(history):
        await play(chat, number, turn)
        await check(chat, history[: number + 1])
    await chat.settled()
    await check(chat, history)


async def check(chat: Conversation, history: list[dict[str, object]]) -> None:
    memory = await chat.open()
    await assert_exactly_once(chat, memory)
    assert all(entry.run_id is None for entry in memory.log.entries)
    notes = [entry.text for entry in memory.log.entries]
    gone = [n for n, past in enumerate(history) if past["end"] == "discarded"]
    assert not any(f"- u{n}s" in "\n".join([*memory.window.blocks()[1:], *notes]) for n in gone)
