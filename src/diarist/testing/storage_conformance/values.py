"""Values: what goes in comes out, and nothing is shared with the caller."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from diarist.exceptions import InputError
from diarist.messages import (
    DataPart,
    FilePart,
    Message,
    Part,
    ReasoningPart,
    SentBlock,
    SourcePart,
    TextPart,
    ToolPart,
)
from diarist.storage import Run, Storage
from diarist.testing.storage_conformance.helpers import begin, texts, user

ALL_PARTS: list[Part] = [
    TextPart(text="hello", provider_data={"id": "x"}),
    ReasoningPart(text="hm", signature="s", provider="p", provider_data={"a": [1]}),
    ToolPart(call_id="1", name="search", args={"q": "Rome", "n": 3}),
    ToolPart(call_id="2", name="search", args={}, state="result", result={"hits": [1, 2.5, None, True]}),
    ToolPart(call_id="3", name="search", args={}, state="error", result="boom", provider_executed=True),
    FilePart(media_type="image/png", data=bytes(range(256)), name="dot.png"),
    FilePart(media_type="image/png", url="https://example.org/dot.png"),
    SourcePart(url="https://example.org", title="Example", id="s1"),
    DataPart(type="data-weather", data={"c": 18}, id="d1"),
]
TEXTS = [
    "",
    "Grüße aus 東京 👩‍👩‍👧 \u202eabc",
    "quotes ' \" ; DROP TABLE messages; -- \\ %s :name ?",
    "NUL \0 and \x1b controls \r\n\t",
    "lone surrogate \ud83d here \udc00",
    " leading space",
]


class ValueConformance:
    async def test_every_part_comes_back(self, storage: Storage) -> None:
        message = Message(
            id="m",
            role="assistant",
            parts=ALL_PARTS,
            metadata={"nested": {"list": [1, "two", None]}},
            part_tokens=tuple(range(len(ALL_PARTS))),
            sent=SentBlock(text="<today>Tuesday</today>", tokens=7, made_from={"date": "2026-01-20"}),
        )
        found, run = await _through(storage, message)
        message.thread_id, message.resource_id, message.run_id, message.seq = "trip", "ada", run.id, 1
        assert found == message

    @pytest.mark.parametrize("text", TEXTS)
    async def test_text_comes_back_as_it_was(self, storage: Storage, text: str) -> None:
        parts: list[Part] = [
            TextPart(text=text),
            ToolPart(call_id=text, name="echo", args={"text": text}, state="result", result=[text]),
        ]
        found, _ = await _through(storage, Message(role="user", parts=parts, metadata={"text": text}))
        assert (found.parts, found.metadata) == (parts, {"text": text})

    async def test_strange_ids_are_only_names(self, storage: Storage) -> None:
        run = await begin(storage)
        ids = [text for text in TEXTS if text.isprintable() and text] + ["%", "_"]
        await storage.append_messages(run, [user(id, id=id) for id in ids])
        await storage.finish_run(run, "committed")
        assert await texts(storage) == ids
        assert await storage.existing_ids("trip", ids) == set(ids)
        assert await storage.delete_messages("trip", ["%"]) == 1
        assert await texts(storage) == [id for id in ids if id != "%"]

    @pytest.mark.parametrize("id", ["a\0b", "\ud800"])
    async def test_ids_that_no_database_can_keep_are_refused(self, storage: Storage, id: str) -> None:
        run = await begin(storage)
        with pytest.raises(InputError, match="message id"):
            await storage.append_messages(run, [user("fine"), user("x", id=id)])
        assert await texts(storage, run_id=run.id) == []

    async def test_large_parts(self, storage: Storage) -> None:
        text, data = "Größe 👍 " * 150_000, bytes(range(256)) * 4096
        message = Message(
            role="user",
            parts=[TextPart(text=text), FilePart(media_type="application/octet-stream", data=data)],
        )
        found, _ = await _through(storage, message)
        assert found.parts == message.parts

    async def test_large_integers_stay_exact(self, storage: Storage) -> None:
        numbers = [2**53 + 1, -(2**63), 2**64, 10**40]
        found, _ = await _through(storage, user("x", metadata={"numbers": numbers}))
        assert found.metadata == {"numbers": numbers}

    async def test_values_that_json_does_not_know_become_strings(self, storage: Storage) -> None:
        given: dict[Any, Any] = {"price": Decimal("1.50"), "ids": [1], 5: "five", "when": datetime(2026, 1, 20)}
        found, _ = await _through(storage, user("x", metadata=given))
        assert found.metadata == {"price": "1.50", "ids": [1], "5": "five", "when": "2026-01-20T00:00:00"}

    async def test_values_that_cannot_be_written_down_are_refused(self, storage: Storage) -> None:
        circle: list[Any] = []
        circle.append(circle)
        run = await begin(storage)
        with pytest.raises(InputError):
            await storage.append_messages(run, [user("fine"), user("x", metadata={"circle": circle})])
        assert await texts(storage, run_id=run.id) == []

    @pytest.mark.parametrize(
        "moment",
        [
            None,
            datetime(2026, 1, 20, 9, 30, 15, 123457, tzinfo=UTC),
            datetime(2026, 1, 20, 23, 30, tzinfo=timezone(timedelta(hours=-8))),
            datetime(1890, 5, 1, tzinfo=UTC),
        ],
    )
    async def test_times_keep_their_microseconds(self, storage: Storage, moment: datetime | None) -> None:
        found, _ = await _through(storage, user("x", created_at=moment))
        assert found.created_at == moment
        if found.created_at is not None:
            assert found.created_at.utcoffset() == timedelta(0)

    async def test_time_without_a_zone_is_refused(self, storage: Storage) -> None:
        run = await begin(storage)
        with pytest.raises(InputError, match="time zone"):
            await storage.append_messages(run, [user("x", created_at=datetime(2026, 1, 20))])

    async def test_messages_are_copied_in_and_out(self, storage: Storage) -> None:
        part = ToolPart(call_id="1", name="f", args={"a": [1]})
        message = Message(role="assistant", parts=[part], metadata={"tags": ["a"]})
        run = await begin(storage)
        await storage.append_messages(run, [message])
        part.args["a"].append("in")
        message.metadata["tags"].append("in")
        message.parts.append(TextPart(text="in"))
        (first,) = await storage.list_messages("trip", run_id=run.id)
        first.tool_parts[0].args["a"].append("out")
        first.metadata["tags"].append("out")
        (second,) = await storage.list_messages("trip", run_id=run.id)
        assert second.parts == [ToolPart(call_id="1", name="f", args={"a": [1]})]
        assert second.metadata == {"tags": ["a"]}


async def _through(storage: Storage, message: Message) -> tuple[Message, Run]:
    """The message as it comes back from a committed run, and the run."""
    run = await begin(storage)
    await storage.append_messages(run, [message])
    await storage.finish_run(run, "committed")
    (found,) = await storage.list_messages("trip")
    return found, run
