"""What the Observer refuses for good is written off: never for a fault that is not the message's, and at its price."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from diarist import Memory, ObservationalMemoryConfig, ObservationConfig
from diarist.chunks import Usage
from diarist.exceptions import ContentFilterError, DiaristError, ModelConnectionError
from diarist.memory import MemoryHooks
from diarist.models.base import ModelRequest
from diarist.storage import ObservationLog, SQLiteStorage
from diarist.storage.records import Failures
from diarist.testing import Reply, ScriptedModel
from tests.memory.diary_kit import message, word
from tests.scenarios.kit import WordCounter

LOST = "could not be noted"
HARMLESS = "going to Rome"
"""What the Observer is asked to note where it refused a message each time: does it answer at all?"""
PRICE = Usage(input_tokens=11, output_tokens=7)


def refusal() -> Exception:
    return ContentFilterError("content filter")


def unreadable(read: Callable[[], object]) -> Exception:
    """What reading something broken raises, a ValueError each time."""
    try:
        read()
    except ValueError as error:
        return error
    raise AssertionError("it can be read")


UNREADABLE = [
    unreadable(lambda: TypeAdapter(int).validate_python("many")),
    unreadable(lambda: json.loads("<html>")),
    unreadable(lambda: b"\xff".decode()),
]


def observer(error: Exception | None, *, control: Exception | None = None) -> ScriptedModel:
    """Refuses the first message, where there is an ``error``; ``control``: and what is harmless as well."""

    def write(request: ModelRequest) -> Reply | Exception:
        if error is not None and word(1) in request.text:
            return error
        if control is not None and HARMLESS in request.text:
            return control
        noted = HARMLESS if HARMLESS in request.text else "talk"
        return Reply(text=f"<diary>\nDate: 2026-03-02\n- 🟡 {noted}\n</diary>", usage=PRICE)

    return ScriptedModel(write, name="observer")


def keeping(storage: SQLiteStorage, model: ScriptedModel, hooks: MemoryHooks | None = None) -> Memory:
    config = ObservationalMemoryConfig(
        model=model,
        observation=ObservationConfig(message_tokens=100, buffer_tokens=20, observer_batch_tokens=40),
        hooks=hooks or MemoryHooks(),
    )
    return Memory(storage=storage, observational_memory=config, token_counter=WordCounter())


async def observed(memory: Memory) -> ObservationLog:
    """The diary after it was observed, successfully or not."""
    with suppress(DiaristError, ValueError):
        return await memory.diary.observe(thread="t")
    return await memory.diary.get(thread="t")


@pytest.fixture
async def storage(tmp_path: Path) -> SQLiteStorage:
    """A storage with a message that the Observer may refuse."""
    storage = SQLiteStorage(tmp_path / "memory.db")
    await Memory(storage=storage).messages.save([message(1)], thread="t")
    return storage


@pytest.mark.parametrize("error", UNREADABLE, ids=lambda error: type(error).__name__)
async def test_an_observer_that_cannot_read_an_answer_refuses_nothing(storage: SQLiteStorage, error: Exception) -> None:
    assert (await observed(keeping(storage, observer(error)))).entries == ()
    (entry,) = (await observed(keeping(storage, observer(None)))).entries
    assert LOST not in entry.text


@pytest.mark.parametrize("error", [*UNREADABLE, ValueError("oops")], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("name", ["before_observation", "after_observation"])
async def test_a_hook_that_fails_at_a_message_refuses_nothing(
    storage: SQLiteStorage, name: str, error: Exception
) -> None:
    """It would let pass what is harmless."""

    def fail(value: object) -> object:
        if HARMLESS in str(value):
            return value
        raise error

    memory = keeping(storage, observer(None), MemoryHooks(**{name: fail}))  # type: ignore[arg-type]
    assert (await observed(memory)).entries == ()
    (entry,) = (await observed(keeping(storage, observer(None)))).entries
    assert LOST not in entry.text


async def test_what_writing_a_message_off_has_cost_is_counted(storage: SQLiteStorage) -> None:
    """Refused calls tell no usage; the question whether the Observer answers at all does."""
    model = observer(refusal())
    memory = keeping(storage, model)
    (entry,) = (await observed(memory)).entries
    assert LOST in entry.text
    assert sum(HARMLESS in request.text for request in model.requests) == 1
    assert entry.usage == PRICE
    assert (await memory.diary.usage(thread="t")).observer == PRICE


@pytest.mark.parametrize("control", [refusal(), ModelConnectionError("down")], ids=lambda error: type(error).__name__)
async def test_nothing_is_written_off_where_the_harmless_question_has_no_answer(
    storage: SQLiteStorage, control: Exception
) -> None:
    model = observer(refusal(), control=control)
    assert (await observed(keeping(storage, model))).entries == ()
    assert any(HARMLESS in request.text for request in model.requests)


async def test_a_refused_message_is_skipped_in_one_call(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "memory.db")
    memory = keeping(storage, observer(refusal()))
    await memory.messages.save([message(2), message(1), message(3)], thread="t")

    log = await memory.diary.observe(thread="t")

    assert log.text.count(LOST) == 1
    assert log.text.count("talk") == 2
    assert log.observer_failures == Failures()
