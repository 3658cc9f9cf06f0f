"""``memory.turn``: memory for a loop that calls the model itself."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from diarist import Memory, ObservationalMemoryConfig
from diarist.chunks import DataChunk
from diarist.convert import to_anthropic, to_openai
from diarist.exceptions import ConfigError, InputError, NotFoundError, StorageError, ThreadBusyError
from diarist.memory import RetrievalConfig, SemanticRecallConfig
from diarist.memory.turn import Turn
from diarist.models.embedders import Purpose
from diarist.storage import InMemoryStorage
from diarist.testing import ScriptedModel
from tests.memory.semantic.kit import TopicEmbedder
from tests.scenarios.kit import failing, observational, observer, words

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "Rome"}'}}
ASKED: list[dict[str, Any]] = [{"role": "user", "content": "How is Rome?"}]
LOOKED = [{"role": "assistant", "content": None, "tool_calls": [CALL]}]
SEEN = [{"role": "tool", "tool_call_id": "c1", "content": "sunny"}]
SAID = [{"role": "assistant", "content": "Sunny."}]


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


async def texts(memory: Memory, thread: str = "t") -> list[str]:
    return [row.text for row in await memory.messages.list(thread=thread)]


async def state_of(turn: Turn, memory: Memory) -> str:
    run = await memory.storage.get_run(turn.run_id)
    assert run is not None
    return run.state


@pytest.fixture(params=[False, True], ids=["history", "diary"])
def memory(request: pytest.FixtureRequest) -> Memory:
    storage = InMemoryStorage()
    return observational(storage) if request.param else Memory(storage=storage)


# -- storing


async def test_leaving_the_block_stores_what_the_list_holds_by_then(memory: Memory) -> None:
    messages = list(ASKED)
    async with memory.turn(thread="t", resource="ada") as turn:
        await turn.prompt(messages)
        messages += SAID
    assert await texts(memory) == ["How is Rome?", "Sunny."]
    assert await state_of(turn, memory) == "committed"


async def test_a_call_and_its_result_are_one_message(memory: Memory) -> None:
    async with memory.turn(thread="t") as turn:
        await turn.prompt(ASKED)
        view = await turn.prompt([*ASKED, *LOOKED, *SEEN])
        await turn.commit([*ASKED, *LOOKED, *SEEN, *SAID])
    rows = await memory.messages.list(thread="t")
    assert [row.role for row in rows] == ["user", "assistant", "assistant"]
    assert rows[1].tool_parts[0].result == "sunny"
    assert view.ids[1] == view.ids[2] == rows[1].id


async def test_results_may_come_later_than_their_call(memory: Memory) -> None:
    async with memory.turn(thread="t") as turn:
        await turn.prompt(ASKED)
        view = await turn.prompt([*ASKED, *LOOKED])
        assert [message.role for message in view.messages] == ["user"]  # a call without its result is never sent
        view = await turn.prompt([*ASKED, *LOOKED, *SEEN])
        assert [message.role for message in view.messages] == ["user", "assistant", "tool"]
    assert [row.role for row in await memory.messages.list(thread="t")] == ["user", "assistant"]


@pytest.mark.parametrize("whole", [True, False], ids=["whole history", "results alone"])
async def test_results_may_come_in_the_next_turn(memory: Memory, whole: bool) -> None:
    """As after a pause in which a person approves the call, or a client runs it."""
    async with memory.turn(thread="t", fail_open=False) as turn:
        await turn.prompt(ASKED)
        await turn.commit([*ASKED, *LOOKED])
    for last in [False, True] if whole else [True]:  # the loop is stopped before its answer, and begins again
        async with memory.turn(thread="t", fail_open=False) as turn:
            given = [*ASKED, *LOOKED, *SEEN] if whole else list(SEEN)
            view = await turn.prompt(given)
            assert [message.role for message in view.messages] == ["user", "assistant", "tool"]
            arranged = view.arrange(given, make=to_openai, note=lambda message, note: message)
            assert [message["role"] for message in arranged] == ["user", "assistant", "tool"]
            if last:
                await turn.commit([*given, *SAID])
    rows = await memory.messages.list(thread="t")
    assert [row.role for row in rows] == ["user", "assistant", "tool", "assistant"]


async def test_a_history_may_begin_with_a_result_whose_call_only_the_thread_has(memory: Memory) -> None:
    async with memory.turn(thread="t") as turn:
        await turn.commit([*ASKED, {"role": "assistant", "content": "Rainy."}])
    with suppress(ConnectionError):
        async with memory.turn(thread="t") as turn:
            await turn.prompt(ASKED)
            await turn.prompt([*ASKED, *LOOKED, *SEEN])
            raise ConnectionError("the answer is lost")
    events: list[DataChunk] = []
    async with memory.turn(thread="t", on_event=events.append) as turn:
        await turn.prompt([*SEEN, *SAID, *user("And Oslo?")])
    rows = await memory.messages.list(thread="t")
    assert [row.role for row in rows] == ["user", "assistant", "user", "assistant", "assistant", "user"]
    assert [row.text for row in rows[4:]] == ["Sunny.", "And Oslo?"]
    assert not [event for event in events if event.type == "data-thread-diverged"]


async def test_the_same_call_again_stores_nothing_twice(memory: Memory) -> None:
    async with memory.turn(thread="t") as turn:
        first = await turn.prompt(ASKED)
        again = await turn.prompt(ASKED)
    assert again.prompt.text == first.prompt.text
    assert await texts(memory) == ["How is Rome?"]


async def test_an_exception_keeps_the_finished_steps(memory: Memory) -> None:
    turn, messages = memory.turn(thread="t"), list(ASKED)
    with suppress(ZeroDivisionError):
        async with turn:
            await turn.prompt(messages)
            messages += [*LOOKED, *SEEN]
            await turn.prompt(messages)
            messages += SAID
            raise ZeroDivisionError
    assert await texts(memory) == ["How is Rome?", ""]
    assert await state_of(turn, memory) == "interrupted"


async def test_an_exception_keeps_the_working_memory_of_finished_steps() -> None:
    memory, messages = Memory(storage=InMemoryStorage(), working_memory=True), list(ASKED)
    with suppress(ZeroDivisionError):
        async with memory.turn(thread="t") as turn:
            await turn.prompt(messages)
            await turn.call("update_working_memory", {"memory": "Name: Ada"})
            messages += [*LOOKED, *SEEN]
            await turn.prompt(messages)
            await turn.call("update_working_memory", {"memory": "Name: Bea"})
            raise ZeroDivisionError
    assert await memory.working.get(thread="t") == "Name: Ada"


async def test_a_discarded_turn_leaves_nothing(memory: Memory) -> None:
    async with memory.turn(thread="t") as turn:
        await turn.prompt(ASKED)
        await turn.discard()
    with pytest.raises(NotFoundError):
        await memory.threads.get("t")
    with pytest.raises(InputError, match="has ended"):
        await turn.prompt(ASKED)


async def test_a_loop_may_keep_the_whole_history_or_the_newest_message(memory: Memory) -> None:
    async with memory.turn(thread="t") as turn:
        await turn.prompt(ASKED)
        await turn.commit([*ASKED, *SAID])
    whole = [*ASKED, *SAID, *user("And Oslo?")]
    async with memory.turn(thread="t") as turn:
        view = await turn.prompt(whole)
        assert [message.role for message in view.messages] == ["user", "assistant", "user"]
    async with memory.turn(thread="t") as turn:
        view = await turn.prompt(user("And Bern?"))
    assert [row.id for row in view.brought] == [row.id for row in (await memory.messages.list(thread="t"))[:-1]]
    assert await texts(memory) == ["How is Rome?", "Sunny.", "And Oslo?", "And Bern?"]


async def test_messages_that_the_loop_inserts_before_known_ones_are_sent_and_not_stored(memory: Memory) -> None:
    async with memory.turn(thread="t") as turn:
        await turn.commit([*ASKED, *SAID])
    async with memory.turn(thread="t") as turn:
        await turn.prompt(user("And Oslo?"))
        briefing = [*user("The customer is Ada."), *user("She is in a hurry.")]
        given = [*briefing, *user("And Oslo?"), *LOOKED, *SEEN]
        view = await turn.prompt(given)
        shown = [message.text.partition("\n\n")[2] or message.text for message in view.messages]
        assert shown[:5] == ["How is Rome?", "Sunny.", "The customer is Ada.", "She is in a hurry.", "And Oslo?"]
        assert view.arrange(given, make=lambda message: [message], note=lambda message, _: message)[2:] == given
    assert await texts(memory) == ["How is Rome?", "Sunny.", "And Oslo?", ""]


@pytest.mark.parametrize("with_ids", [False, True])
async def test_a_loop_may_give_the_whole_history_from_the_second_call_on(memory: Memory, with_ids: bool) -> None:
    def named(messages: list[dict[str, Any]], *ids: str) -> list[dict[str, Any]]:
        return [{**said, "id": id} if with_ids else said for said, id in zip(messages, ids, strict=True)]

    earlier, asked = named([*ASKED, *SAID], "q1", "a1"), named(user("And Oslo?"), "q2")
    async with memory.turn(thread="t") as turn:
        await turn.commit(earlier)
    await memory.messages.save([{"role": "user", "content": "My PIN is 1234", "id": "pin"}], thread="t")
    await memory.forget(message_ids=["pin"], thread="t")
    async with memory.turn(thread="t") as turn:
        await turn.prompt(asked)
        forgotten = named(user("My PIN is 1234"), "pin")
        view = await turn.prompt([*earlier, *forgotten, *asked, *LOOKED, *SEEN])
        assert [message.role for message in view.messages] == ["user", "assistant", "user", "assistant", "tool"]
        assert "1234" not in view.prompt.text
        assert len(view.order) == len(set(view.order))
    assert await texts(memory) == ["How is Rome?", "Sunny.", "And Oslo?", ""]


async def test_an_earlier_question_given_later_without_an_id_is_sent_once(memory: Memory) -> None:
    async with memory.turn(thread="t") as turn:
        await turn.commit([*ASKED, *SAID])
    async with memory.turn(thread="t") as turn:
        await turn.prompt([*SAID, *user("And Oslo?")])
        view = await turn.prompt([*ASKED, *SAID, *user("And Oslo?")])
        assert [message.role for message in view.messages] == ["user", "assistant", "user"]


async def test_a_summary_of_the_first_steps_is_sent_in_their_place_and_not_stored(memory: Memory) -> None:
    other = {**CALL, "id": "c2"}
    step = [{"role": "assistant", "content": None, "tool_calls": [other]}, {**SEEN[0], "tool_call_id": "c2"}]
    async with memory.turn(thread="t") as turn:
        await turn.prompt(ASKED)
        await turn.prompt([*ASKED, *LOOKED, *SEEN, *step])
        view = await turn.prompt([*ASKED, {"role": "assistant", "content": "I looked once."}, *step])
        assert [message.role for message in view.messages][-2:] == ["assistant", "tool"]
        assert "I looked once." in view.prompt.text
    assert "I looked once." not in await texts(memory)


async def test_inserted_messages_keep_their_order_beside_a_reminder_that_moved(memory: Memory) -> None:
    async with memory.turn(thread="t") as turn:
        await turn.prompt([*ASKED, *user("Be brief.")])
        await turn.prompt([*ASKED, *LOOKED, *SEEN, *user("Be brief.")])
        given = [*ASKED, *LOOKED, *SEEN, *user("In Celsius!"), *user("Be brief.")]
        view = await turn.prompt(given)
        assert view.messages[-1].text.endswith("In Celsius!")
        view = await turn.prompt([*user("Ada is in a hurry."), *given])
        assert [message.text.split("\n")[-1] for message in view.messages if message.role == "user"] == [
            "Ada is in a hurry.",
            "How is Rome?",
            "Be brief.",
            "In Celsius!",
        ]
    assert await texts(memory) == ["How is Rome?", "Be brief.", "", "In Celsius!"]


@pytest.mark.parametrize("with_ids", [False, True])
async def test_a_reminder_at_the_end_of_each_request_hides_nothing(memory: Memory, with_ids: bool) -> None:
    history: list[dict[str, Any]] = user("How is Rome?")
    async with memory.turn(thread="t") as turn:
        for step in range(4):
            reminder = {**user("Be brief.")[0], **({"id": f"reminder-{step}"} if with_ids else {})}
            view = await turn.prompt([*history, reminder])
            assert [message.role for message in view.messages] == ["user", "user", *["assistant", "tool"] * step]
            call = {"id": f"c{step}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            history.append({"role": "assistant", "content": "", "tool_calls": [call]})
            history.append({"role": "tool", "tool_call_id": f"c{step}", "content": f"seen {step}"})
        await turn.commit([*history, *SAID])
    assert await texts(memory) == ["How is Rome?", "Be brief.", "", "", "", "", "Sunny."]


async def test_a_user_who_speaks_between_the_steps_is_heard_before_a_reminder(memory: Memory) -> None:
    async with memory.turn(thread="t") as turn:
        await turn.prompt([*ASKED, *user("Be brief.")])
        view = await turn.prompt([*ASKED, *LOOKED, *SEEN, *user("In Celsius!"), *user("Be brief.")])
        assert view.messages[-1].text.endswith("In Celsius!")
    assert await texts(memory) == ["How is Rome?", "Be brief.", "", "In Celsius!"]


async def test_two_equal_questions_in_a_row_stay_two(memory: Memory) -> None:
    for _ in range(2):
        async with memory.turn(thread="t") as turn:
            await turn.prompt(user("yes"))
            await turn.commit([*user("yes"), *user("yes")])
    assert await texts(memory) == ["yes"] * 4


# -- the view


async def test_the_view_has_the_diary_and_only_what_it_does_not_cover() -> None:
    memory = observational(InMemoryStorage(), await_background=True)
    for number in range(8):
        async with memory.turn(thread="t", resource="ada") as turn:
            messages = user(words(f"talk-{number}", 30))
            view = await turn.prompt([{"role": "system", "content": "Be kind."}, *messages])
            await turn.commit([*messages, *user(words(f"more-{number}", 30))])
    assert "note-1" in "".join(view.system)
    assert "talk-0" not in view.prompt.text
    assert view.prompt.messages[0].text == "Be kind."
    assert view.prompt.messages[1].text == view.system[0]
    assert view.notes == {view.ids[1]: view.messages[-1].text.partition("\n\n")[0]}
    assert to_openai(view.prompt)[0] == {"role": "system", "content": "Be kind."}
    assert to_anthropic(view.prompt)["system"].startswith("Be kind.\n\n")
    assert 0 < len(view.cache) <= 4


async def test_arrange_keeps_the_given_objects() -> None:
    memory = Memory(storage=InMemoryStorage())
    async with memory.turn(thread="t") as turn:
        await turn.prompt(ASKED)
        await turn.commit([*ASKED, *SAID])
    given = [*user("And Oslo?"), *LOOKED, *SEEN]
    async with memory.turn(thread="t") as turn:
        view = await turn.prompt(given)
        arranged = view.arrange(
            given,
            make=lambda message: [{"role": message.role, "content": message.text}],
            note=lambda message, note: {**message, "content": f"{note}\n{message['content']}"},
        )
    assert arranged == [*ASKED, *SAID, *given]
    assert arranged[2] is given[0]


async def test_memory_brings_its_tools_and_runs_them() -> None:
    memory = Memory(
        storage=InMemoryStorage(),
        working_memory=True,
        observational_memory=ObservationalMemoryConfig(model="extractive", retrieval=RetrievalConfig()),
    )
    async with memory.turn(thread="t", resource="ada") as turn:
        view = await turn.prompt(ASKED)
        assert {tool.name for tool in view.tools} == {"recall", "update_working_memory"}
        assert memory.tools == [tool.definition for tool in view.tools]  # known before a turn, too
        assert await turn.call("update_working_memory", {"memory": "Name: Ada"}) == "Updated."
        assert "nothing" in await turn.call("update_working_memory", {"nothing": 1})
        assert await turn.call("update_working_memory", '{"memory": "Name: Ada L."}') == "Updated."
        for raw in ('{"memory": "Na', "null", '["Ada"]'):
            assert "the arguments are not" in await turn.call("update_working_memory", raw)
        with pytest.raises(InputError, match="it has: update_working_memory, recall"):
            await turn.call("look", {})
    assert "Ada L." in await memory.working.get(resource="ada")


@pytest.mark.parametrize("discards", [False, True])
async def test_a_long_history_from_before_is_observed_in_its_first_turn(discards: bool) -> None:
    memory = observational(InMemoryStorage(), message_tokens=200)
    given = [said for number in range(10) for said in (*user(words(f"talk-{number}", 40)), *SAID)] + user("And now?")
    async with memory.turn(thread="t") as turn:
        view = await turn.prompt(given)
        assert "note-1" in view.prompt.text
        assert "talk-0" not in view.prompt.text
        assert view.messages[-1].text.endswith("And now?")
        if discards:
            await turn.discard()
    async with memory.turn(thread="t") as turn:
        view = await turn.prompt(user("Next"))
        assert ("note-1" in view.prompt.text) is not discards
    assert len(await texts(memory)) == (1 if discards else len(given) + 1)


async def test_the_question_of_a_turn_that_begins_after_tool_calls_is_not_observed_yet() -> None:
    model = observer()
    memory = observational(InMemoryStorage(), message_tokens=200, observer_model=model)
    given = [*ASKED, *LOOKED, {**SEEN[0], "content": words("sunny", 250)}]
    given += [{**LOOKED[0], "tool_calls": [{**CALL, "id": "c2"}]}, {**SEEN[0], "tool_call_id": "c2"}]
    async with memory.turn(thread="t") as turn:
        view = await turn.prompt(given)
    assert "note-1" in view.prompt.text
    assert [message.role for message in view.messages] == ["user", "assistant", "tool"]
    assert "How is Rome?" in view.messages[0].text
    assert view.prompt.text.count("sunny") == 1
    assert ["How is Rome?" in request.prompt.text for request in model.requests] == [False]


async def test_a_result_that_comes_with_the_question_is_not_observed_yet() -> None:
    model = observer()
    memory = observational(InMemoryStorage(), message_tokens=200, observer_model=model)
    result = {"role": "tool", "tool_call_id": "c1", "content": words("sunny", 250)}
    async with memory.turn(thread="t") as turn:
        view = await turn.prompt([result, *ASKED])
    assert view.prompt.text.count("sunny") == 250
    assert model.requests == []


async def test_memory_makes_room_in_a_history_that_is_new() -> None:
    memory = observational(InMemoryStorage(), message_tokens=100_000)
    given = [said for number in range(10) for said in (*user(words(f"talk-{number}", 40)), *SAID)] + user("And now?")
    async with memory.turn(thread="t") as turn:
        before = await turn.prompt(given)
        assert await turn.overflowed("maximum context length exceeded")
        assert len((await turn.prompt(given)).messages) < len(before.messages)
        assert not await turn.overflowed("maximum context length exceeded"), "only the question is left"


async def test_memory_makes_room_in_a_prompt_that_is_too_long() -> None:
    memory = observational(InMemoryStorage(), message_tokens=1000)
    for number in range(6):
        async with memory.turn(thread="t") as turn:
            view = await turn.prompt(user(words(f"talk-{number}", 40)))
            if number == 5:
                assert "talk-2" in view.prompt.text
                assert await turn.overflowed("maximum context length exceeded")
                view = await turn.prompt(user(words("talk-5", 40)))
                assert "talk-2" not in view.prompt.text
                assert "note-1" in view.prompt.text
    async with Memory(storage=InMemoryStorage()).turn(thread="t") as turn:
        await turn.prompt(ASKED)
        assert not await turn.overflowed("maximum context length exceeded")


# -- failures


class Broken(InMemoryStorage):
    """A storage that is away, or that does not answer, while ``how`` says so."""

    how: str = ""

    def __init__(self, *, fails_at: str = "") -> None:
        super().__init__()
        self._fails_at = fails_at

    async def existing_ids(self, *args: Any, **options: Any) -> Any:
        if self._fails_at == "existing_ids":
            await self._fail()
        return await super().existing_ids(*args, **options)

    async def _fail(self) -> None:
        if self.how == "away":
            raise StorageError("the database is away")
        if self.how == "silent":
            await asyncio.Event().wait()

    async def begin_run(self, *args: Any, **options: Any) -> Any:
        if not self._fails_at:
            await self._fail()
        return await super().begin_run(*args, **options)

    async def append_messages(self, *args: Any, **options: Any) -> Any:
        await self._fail()
        return await super().append_messages(*args, **options)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["away", "silent"])
@pytest.mark.parametrize("diary", [False, True], ids=["history", "diary"])
async def test_without_storage_the_given_messages_go_out_and_are_stored_when_it_is_back(
    how: str, diary: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diarist.memory.turn.LONGEST_FAILURE", 0.05)
    storage = Broken()
    memory = observational(storage) if diary else Memory(storage=storage)
    storage.how = how
    async with memory.turn(thread="t") as turn:
        given = [{"role": "system", "content": "Be kind."}, *ASKED, *LOOKED, *SEEN]
        view = await turn.prompt(given)
        assert view.degraded == turn.degraded != ""
        assert to_openai(view.prompt) == to_openai(given)
        assert view.keep == list(dict.fromkeys(view.ids[1:]))
        storage.how = ""
        monkeypatch.setattr("diarist.memory.turn.LONGEST_FAILURE", 30)
        await turn.commit([*given, *SAID])
    assert await texts(memory) == ["How is Rome?", "", "Sunny."]


async def test_a_failure_in_the_middle_lets_the_turn_go_on() -> None:
    storage = Broken()
    memory = observational(storage)
    async with memory.turn(thread="t") as turn:
        assert not (await turn.prompt(ASKED)).degraded
        storage.how = "away"
        view = await turn.prompt([*ASKED, *LOOKED, *SEEN])
        assert "away" in view.degraded
        assert [message.role for message in view.messages] == ["user", "assistant", "tool"]
        storage.how = ""
        view = await turn.prompt([*ASKED, *LOOKED, *SEEN])
        assert not view.degraded
        await turn.commit([*ASKED, *LOOKED, *SEEN, *SAID])
    assert await texts(memory) == ["How is Rome?", "", "Sunny."]


@pytest.mark.parametrize("how", ["away", "silent"])
async def test_a_failure_after_the_run_began_leaves_the_thread_free(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diarist.memory.turn.LONGEST_FAILURE", 0.05)
    storage = Broken(fails_at="existing_ids")
    memory = Memory(storage=storage, thread_wait=5)
    async with memory.turn(thread="t") as turn:
        storage.how = how
        failed = turn.run_id
        assert (await turn.prompt(ASKED)).degraded
        storage.how = ""
        monkeypatch.setattr("diarist.memory.turn.LONGEST_FAILURE", 30)
        await turn.commit([*ASKED, *SAID])
    assert not turn.degraded
    await memory.settled()
    run = await storage.get_run(failed)
    assert run is None or run.state == "discarded"
    assert await texts(memory) == ["How is Rome?", "Sunny."]


async def test_a_write_that_is_confirmed_too_late_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diarist.memory.turn.LONGEST_FAILURE", 0.05)
    storage, confirmed = InMemoryStorage(), asyncio.Event()
    append = storage.append_messages

    async def late(*args: Any, **options: Any) -> Any:
        numbers = await append(*args, **options)
        await confirmed.wait()
        return numbers

    monkeypatch.setattr(storage, "append_messages", late)
    memory = observational(storage)
    async with memory.turn(thread="t") as turn:
        assert (await turn.prompt(ASKED)).degraded
        asyncio.get_running_loop().call_later(0.1, confirmed.set)
        await turn.commit([*ASKED, *SAID])
    assert not turn.degraded
    assert await texts(memory) == ["How is Rome?", "Sunny."]


async def test_a_write_that_never_ends_does_not_hold_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diarist.memory.turn.LONGEST_FAILURE", 0.05)
    monkeypatch.setattr("diarist.concurrency.CLEANUP_GRACE", 0.05)
    monkeypatch.setattr("diarist.memory.run_recorder.CLEANUP_GRACE", 0.05)
    storage = InMemoryStorage()
    append = storage.append_messages

    async def silent(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(storage, "append_messages", append)
        await asyncio.Event().wait()

    monkeypatch.setattr(storage, "append_messages", silent)
    memory = observational(storage)
    async with memory.turn(thread="t") as turn:
        assert (await turn.prompt(ASKED)).degraded
        await turn.commit([*ASKED, *SAID])
    assert await texts(memory) == ["How is Rome?", "Sunny."]


async def test_time_in_which_the_event_loop_is_busy_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diarist.memory.turn.LONGEST_FAILURE", 0.1)
    monkeypatch.setattr("diarist.memory.turn._SLICE", 0.005)
    storage = InMemoryStorage()
    begin = storage.begin_run

    async def among_others(*args: Any, **options: Any) -> Any:
        for _ in range(6):
            time.sleep(0.05)  # noqa: ASYNC251 - other work of the program
            await asyncio.sleep(0)
        return await begin(*args, **options)

    monkeypatch.setattr(storage, "begin_run", among_others)
    async with observational(storage).turn(thread="t") as turn:
        assert not (await turn.prompt(ASKED)).degraded


async def test_a_slow_embedder_costs_no_more_than_what_it_would_recall(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(TopicEmbedder):
        async def embed(self, texts: Sequence[str], *, purpose: Purpose = "document") -> list[list[float]]:
            if purpose == "query":
                answered = asyncio.Event()
                asyncio.get_running_loop().call_later(0.6, answered.set)
                await answered.wait()
            return await super().embed(texts, purpose=purpose)

    monkeypatch.setattr("diarist.memory.turn.LONGEST_FAILURE", 0.2)
    recall = SemanticRecallConfig(timeout=60)
    memory = Memory(storage=InMemoryStorage(), semantic_recall=recall, embedder=Slow(), working_memory=True)
    await memory.working.update("# User\n- Name: Ada", resource="ada")
    async with memory.turn(thread="t", resource="ada") as turn:
        view = await turn.prompt(ASKED)
        assert not view.degraded
        assert "Name: Ada" in view.prompt.text


@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("step", ["begin_run", "existing_ids", "list_messages", "log_and_messages"])
async def test_a_turn_on_a_slow_database_is_stored_once(
    step: str, with_ids: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, answers = InMemoryStorage(), asyncio.Event()
    memory = observational(storage)
    call = getattr(storage, step)

    async def slow(*args: Any, **options: Any) -> Any:
        await answers.wait()
        return await call(*args, **options)

    given: list[dict[str, Any]] = []
    for number in range(3):
        given += [{**user(f"question {number}")[0], **({"id": f"q{number}"} if with_ids else {})}]
        if number == 2:
            monkeypatch.setattr(storage, step, slow)
            monkeypatch.setattr("diarist.concurrency.CLEANUP_GRACE", 0.05)
            monkeypatch.setattr("diarist.memory.turn.LONGEST_FAILURE", 0.05)
        async with memory.turn(thread="t") as turn:
            await turn.prompt(given)
            given += [
                {"role": "assistant", "content": f"answer {number}", **({"id": f"a{number}"} if with_ids else {})}
            ]
    assert turn.degraded == "memory did not answer within 0.05 s; it stores the turn in the background"
    with pytest.raises(InputError, match="has ended"):
        await turn.prompt(given)
    answers.set()
    await memory.settled()
    assert await texts(memory) == [message["content"] for message in given]


async def test_a_turn_whose_storage_fails_as_it_begins_stores_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Broken(fails_at="existing_ids")
    memory = Memory(storage=storage)
    given = [*ASKED, *SAID]
    await memory.messages.save(given, thread="t")
    given = [{"id": "q2", **said} for said in user("And Oslo?")]
    async with memory.turn(thread="t") as turn:
        storage.how = "away"
        await turn.prompt([*ASKED, *SAID, *given])
    assert turn.degraded
    storage.how = ""
    await memory.settled()
    assert await texts(memory) == ["How is Rome?", "Sunny."]


async def test_messages_may_be_corrected_after_a_mistake() -> None:
    memory = Memory(storage=InMemoryStorage(), thread_wait=5)
    await memory.messages.save([{"role": "user", "content": "Forget me", "id": "m1"}], thread="t")
    await memory.forget(message_ids=["m1"], thread="t")
    async with memory.turn(thread="t") as turn:
        with pytest.raises(InputError):
            await turn.prompt([{"role": "user", "content": "Forget me", "id": "m1"}])
        asked = user("Hello")
        await turn.prompt(asked)
        asked += SAID
    assert await texts(memory) == ["Hello", "Sunny."]


async def test_a_turn_that_is_never_ended_frees_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diarist.memory.run_lifecycle.RUN_TTL", 0.1)
    memory = Memory(storage=InMemoryStorage(), thread_wait=5)
    turn = memory.turn(thread="t")
    await turn.prompt(ASKED)
    del turn
    gc.collect()
    await memory.messages.save("Next", thread="t")
    assert await texts(memory) == ["How is Rome?", "Next"]


async def test_turns_of_one_thread_that_overlap_are_both_stored() -> None:
    memory = observational(InMemoryStorage())
    second = memory.turn(thread="t")
    async with memory.turn(thread="t") as first:
        await first.prompt(ASKED)
        assert first.run_id in (await second.prompt(user("Me too"))).degraded
        ending = asyncio.create_task(second.commit([*user("Me too"), *SAID]))
        for _ in range(3):  # longer than a storage may be silent
            await asyncio.wait([ending], timeout=0.4)
    await ending
    assert await texts(memory) == ["How is Rome?", "Me too", "Sunny."]
    assert not second.degraded


@pytest.mark.slow
async def test_work_for_another_thread_is_no_reason_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diarist.memory.turn.LONGEST_FAILURE", 0.05)
    storage = Broken()
    memory = observational(storage)
    done = asyncio.Event()
    memory._background.start("thread:other:observation", done.wait)
    storage.how = "silent"
    async with memory.turn(thread="t") as turn:
        assert "did not answer" in (await turn.prompt(ASKED)).degraded
        storage.how = ""
    done.set()


async def test_a_turn_may_add_to_a_thread_that_its_history_does_not_continue() -> None:
    memory = Memory(storage=InMemoryStorage())
    await memory.messages.save(
        [*ASKED, *SAID, *user("And Oslo?"), {"role": "assistant", "content": "Cold."}], thread="t"
    )
    async with memory.turn(thread="t", on_divergence="append") as turn:
        given = [*ASKED, *SAID, *user("And Paris?")]
        await turn.prompt(given)
        given += [{"role": "assistant", "content": "Mild."}]
    said = ["How is Rome?", "Sunny.", "And Oslo?", "Cold.", "And Paris?", "Mild."]
    assert await texts(memory) == said


async def test_a_long_history_is_matched_by_what_was_said() -> None:
    memory = Memory(storage=InMemoryStorage())
    given = [message for number in range(200) for message in (*user(f"{number % 3}"), *SAID)] + user("Last")
    async with memory.turn(thread="t") as turn:
        first = await turn.prompt(given)
        second = await turn.prompt([dict(message) for message in given])
        assert first.ids == second.ids


async def test_messages_without_ids_are_sent_as_they_were_given() -> None:
    memory = Memory(storage=InMemoryStorage())
    given = [*ASKED, *LOOKED, *SEEN, *SAID]
    await memory.messages.save([*user("Hello"), *SAID, *given], thread="t")
    given += user("And now?")
    async with memory.turn(thread="t") as turn:
        view = await turn.prompt(given)
        assert [message.text for message in view.brought] == ["Hello", "Sunny."]
        sent = view.arrange(given, make=lambda message: [{"brought": message.text}], note=lambda message, note: message)
        assert sent == [{"brought": "Hello"}, {"brought": "Sunny."}, *given]
        given += SAID
    assert (await texts(memory))[-2:] == ["And now?", "Sunny."]


async def test_an_answer_that_repeats_an_earlier_one_is_stored(memory: Memory) -> None:
    given = [{"id": str(number), **said} for number, said in enumerate([*ASKED, *SAID, *user("And now?")])]
    async with memory.turn(thread="t") as turn:
        await turn.prompt(given)
        given += [{"id": "3", **SAID[0]}]
    assert await texts(memory) == ["How is Rome?", "Sunny.", "And now?", "Sunny."]


async def test_a_busy_thread_does_not_block_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = observational(InMemoryStorage(), thread_wait=0.1)
    async with memory.turn(thread="t") as first:
        await first.prompt(ASKED)
        monkeypatch.setattr("diarist.memory.turn.LONGEST_FAILURE", 0.05)
        async with memory.turn(thread="t") as second:
            assert "is live" in (await second.prompt(user("Me too"))).degraded
    strict = observational(memory.storage, thread_wait=0)
    async with strict.turn(thread="t") as first:
        await first.prompt(ASKED)
        with pytest.raises(ThreadBusyError):
            async with strict.turn(thread="t", fail_open=False) as second:
                await second.prompt(user("Me too"))


async def test_an_observer_that_fails_is_named_and_loses_nothing() -> None:
    events, warnings = list[DataChunk](), list[str]()
    memory = observational(InMemoryStorage(), observer_model=failing(), buffer_tokens=False)
    for number in range(5):
        async with memory.turn(thread="t", on_event=events.append) as turn:
            view = await turn.prompt(user(words(f"talk-{number}", 40)))
            warnings.append(view.warning)
            assert not view.degraded
    later = "memory takes notes again later, after a failure: RuntimeError"
    assert warnings == ["", "", "memory could not take notes: the observer is down", later, later]
    assert "talk-0" in view.prompt.text
    assert "data-om-observation-failed" in {event.type for event in events}


async def test_an_observer_that_failed_in_the_background_is_named_in_the_next_turn() -> None:
    memory = observational(InMemoryStorage(), observer_model=failing())
    warnings = list[str]()
    for _ in range(2):
        async with memory.turn(thread="t") as turn:
            warnings.append((await turn.prompt(user(words("talk", 20)))).warning)
        await memory.settled()
    assert warnings == ["", "memory takes notes again later, after a failure: RuntimeError"]


async def test_waiting_for_a_slow_observer_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = asyncio.Event()

    async def slow(_: Any) -> str:
        await noted.wait()
        return "<diary>\nDate: 2026-03-02\n- 🟡 noted slowly\n</diary>"

    memory = observational(InMemoryStorage(), observer_model=ScriptedModel(slow), buffer_tokens=False)

    def let_it_go_on(event: DataChunk) -> None:
        patience = 0.01 if event.type == "data-om-observation-start" else 30
        monkeypatch.setattr("diarist.memory.turn.LONGEST_FAILURE", patience)
        if event.type == "data-om-observation-start":
            asyncio.get_running_loop().call_later(0.05, noted.set)

    for number in range(5):
        async with memory.turn(thread="t", on_event=let_it_go_on) as turn:
            view = await turn.prompt(user(words(f"talk-{number}", 40)))
            assert not view.degraded
    assert "noted slowly" in view.prompt.text


@pytest.mark.parametrize(("step", "is_slow"), [("acquire_lease", False), ("save_log", False), ("save_log", True)])
async def test_a_database_that_falls_silent_while_notes_are_made_is_not_waited_for(
    step: str, is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, asked, noted = InMemoryStorage(), asyncio.Event(), asyncio.Event()

    async def note(_: Any) -> str:
        asyncio.get_running_loop().call_later(0.5 if is_slow else 0, noted.set)  # slow: the turn waits for it
        await noted.wait()
        return "<diary>\nDate: 2026-03-02\n- 🟡 noted\n</diary>"

    memory = observational(storage, observer_model=ScriptedModel(note), buffer_tokens=False, observe_timeout=3600)

    async def silent(*args: Any, **options: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(storage, step, silent)
    monkeypatch.setattr("diarist.memory.turn.LONGEST_FAILURE", 0.2)
    async with asyncio.timeout(60):
        while not asked.is_set():
            async with memory.turn(thread="t") as turn:
                view = await turn.prompt(user(words("talk", 40)))
    assert "memory did not answer" in view.degraded


class Slow(InMemoryStorage):
    """A storage that always answers, in less than a second; its answers for a turn with notes take longer together."""

    async def begin_run(self, *args: Any, **options: Any) -> Any:
        await asyncio.sleep(0.3)
        return await super().begin_run(*args, **options)

    async def acquire_lease(self, *args: Any, **options: Any) -> Any:
        await asyncio.sleep(0.3)
        return await super().acquire_lease(*args, **options)


async def test_a_slow_database_is_no_failure_while_notes_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diarist.memory.turn.LONGEST_FAILURE", 0.5)
    memory = observational(Slow(), buffer_tokens=False)
    for _ in range(3):
        async with memory.turn(thread="t") as turn:
            view = await turn.prompt(user(words("talk", 40)))
            assert not view.degraded
    assert "note-1" in view.prompt.text


class Held(InMemoryStorage):
    """A storage in which another process holds the lease of the notes, until it was asked for some time."""

    asked = 0

    async def acquire_lease(self, *args: Any, **options: Any) -> Any:
        self.asked += 1
        return await super().acquire_lease(*args, **options) if self.asked > 8 else None


async def test_waiting_for_the_notes_of_another_process_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diarist.memory.turn.LONGEST_FAILURE", 0.2)  # all pauses together are longer
    storage = Held()
    memory = observational(storage)
    for _ in range(4):
        async with memory.turn(thread="t") as turn:
            view = await turn.prompt(user(words("talk", 40)))
            assert not view.degraded
            assert not view.warning
    assert storage.asked > 8
    assert "note-1" in view.prompt.text


async def test_mistakes_of_the_caller_are_raised_also_with_fail_open(memory: Memory) -> None:
    async with memory.turn(thread="t", resource="ada") as turn:
        await turn.prompt(ASKED)
    with pytest.raises(InputError, match="belongs to resource 'ada'"):
        async with memory.turn(thread="t", resource="bob") as turn:
            await turn.prompt(ASKED)
    async with memory.turn(thread="t2", resource="ada") as turn:
        with pytest.raises(InputError, match="all messages are system messages"):
            await turn.prompt([{"role": "system", "content": "Be kind."}])
        with pytest.raises(InputError, match="message 0"):
            await turn.prompt([{"role": "robot", "content": "Hello"}])


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("fail_open", "no"),
        ("read_only", "yes"),
        ("semantic_recall", 1),
        ("last_messages", "ten"),
        ("on_divergence", "merge"),
        ("on_event", "print"),
        ("model_id", None),
    ],
)
def test_an_option_with_a_wrong_value_is_refused(memory: Memory, option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{option} must be .*, not {value!r}"):
        memory.turn(thread="t", **{option: value})


async def test_a_message_that_cannot_be_read_at_the_end_interrupts_the_turn(memory: Memory) -> None:
    turn = memory.turn(thread="t")
    messages = list(ASKED)
    await turn.prompt(messages)
    messages.append({"role": "robot", "content": "Hello"})
    with pytest.raises(InputError, match="message 1"):
        await turn.__aexit__(None, None, None)
    assert await state_of(turn, memory) == "interrupted"


def test_roles_without_a_model_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    memory = Memory(storage=InMemoryStorage(), observational_memory=True)
    with pytest.raises(ConfigError, match="the Observer has no model"):
        memory.turn(thread="t")
    with pytest.raises(ConfigError, match=r"the Observer has no model: .*'extractive'.*model_id.*set OPENAI_API_KEY"):
        memory.turn(thread="t", model_id="openai/gpt-5-mini")
    with pytest.raises(ConfigError, match=r"the Observer has no model: .*'gpt-5-mini': write provider/model"):
        memory.turn(thread="t", model_id="gpt-5-mini")
    memory.turn(thread="t", model=ScriptedModel("noted"))
    with pytest.raises(ConfigError, match=r"generate_title has no model: .*TitleConfig\(model=.*memory\.turn"):
        Memory(storage=InMemoryStorage(), generate_title=True).turn(thread="t")


async def test_an_event_handler_that_fails_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: DataChunk) -> None:
        raise ZeroDivisionError

    memory = observational(InMemoryStorage())
    async with memory.turn(thread="t", on_event=fail) as turn:
        assert not (await turn.prompt(ASKED)).degraded
    assert "on_event failed" in caplog.text


async def test_options_of_one_turn(memory: Memory) -> None:
    async with memory.turn(thread="t") as turn:
        await turn.prompt(ASKED)
    async with memory.turn(thread="t", read_only=True) as turn:
        view = await turn.prompt(user("Do not keep this"))
        assert "How is Rome?" in view.prompt.text
    assert await texts(memory) == ["How is Rome?"]


# -- synchronous code


def test_a_turn_of_synchronous_code() -> None:
    memory = Memory(storage=InMemoryStorage())
    messages = list(ASKED)
    with memory.sync.turn(thread="t", resource="ada", model_id="openai/gpt-5-mini") as turn:
        assert turn.prompt(messages).messages[0].text == "How is Rome?"
        messages += SAID
    with suppress(ZeroDivisionError), memory.sync.turn(thread="t", resource="ada") as turn:
        turn.prompt(user("And Oslo?"))
        raise ZeroDivisionError
    assert [row.text for row in memory.sync.messages.list(thread="t")] == ["How is Rome?", "Sunny.", "And Oslo?"]
    assert turn.degraded == ""
    memory.sync.close()
