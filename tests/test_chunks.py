"""The wire form of chunks: JSON, our names in camelCase and the user's as they are."""

from __future__ import annotations

import json
import math
from base64 import b64decode
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from diarist import Agent, DataChunk, Message, Processor, Tool, chunks
from diarist.chunks import Chunk
from diarist.messages import DataPart, FilePart, ToolPart
from diarist.testing import ScriptedModel, ToolCall
from tests.agent.kit import collect


@dataclass
class Person:
    first_name: str
    born: date


class Tag(BaseModel):
    tag_name: str
    weight: float = 1.0


ADA = Person("Ada", date(1815, 12, 10))
USER_DATA = {
    "a_dict": {"snake_key": [Tag(tag_name="x")]},
    "a_person": ADA,
    "at": datetime(2026, 1, 1, tzinfo=UTC),
    "raw": b"\xff\xfe",
    "much": math.inf,
    7: object,
}
AS_JSON = {
    "a_dict": {"snake_key": [{"tag_name": "x", "weight": 1.0}]},
    "a_person": {"first_name": "Ada", "born": "1815-12-10"},
    "at": "2026-01-01T00:00:00Z",
    "much": None,
}
MESSAGE = Message(
    role="assistant",
    parts=[
        ToolPart(call_id="c", name="look", args={"at_it": ADA}, state="result", result=Tag(tag_name="y")),
        DataPart(type="data-x", data=Tag(tag_name="z")),
        FilePart(media_type="image/png", data=b"abc"),
    ],
    metadata={"my_note": ADA},
)
VALUES: dict[str, Any] = {
    **dict.fromkeys(["args", "metadata", "object", "provider_data", "result"], USER_DATA),
    "usage": chunks.Usage(input_tokens=3, cached_tokens=2),
    "messages": [MESSAGE],
    "step_number": 1,
    "data": b"abc",
    "retry": True,
    "provider_executed": True,
}


def full(chunk_type: type[Any]) -> Any:
    """A chunk with a value in every field of its payload."""
    if chunk_type is DataChunk:
        return DataChunk("data-x", USER_DATA)
    found = next((item for item in fields(chunk_type) if item.name == "payload"), None)
    if found is None:
        return chunk_type(run_id="r")
    payload = getattr(chunks, str(found.type))
    return chunk_type(payload=payload(**{item.name: VALUES.get(item.name, "text") for item in fields(payload)}))


@pytest.mark.parametrize("chunk_type", get_args(Chunk))
def test_the_wire_form_is_json(chunk_type: type[Any]) -> None:
    sent = full(chunk_type).to_dict()
    assert json.loads(json.dumps(sent, allow_nan=False)) == sent
    ours = sent.get("payload", {})
    assert not [name for name in (*sent, *ours, *ours.get("usage", {})) if "_" in name]
    for name in ("args", "metadata", "object", "providerData", "result"):
        if name in ours:
            assert ours[name].items() >= AS_JSON.items(), "the user's names stay"
    if chunk_type is DataChunk:
        assert sent["data"].items() >= AS_JSON.items()


def test_a_file_is_base64_as_in_stored_messages() -> None:
    chunk = chunks.FileChunk(payload=chunks.FilePayload(media_type="image/png", data=b"\xff\xfe\xfd"))
    sent = chunk.to_dict()["payload"]
    assert (sent["mediaType"], b64decode(sent["data"], validate=True)) == ("image/png", b"\xff\xfe\xfd")


@pytest.mark.parametrize(
    ("output_type", "said"),
    [
        (Person, {"first_name": "Ada", "born": "1815-12-10"}),
        (Tag, {"tag_name": "x", "weight": 2.5}),
        (list[Tag], [{"tag_name": "x", "weight": 2.5}]),
        (date, "1815-12-10"),
    ],
)
async def test_a_run_with_an_output_type_can_be_sent(output_type: Any, said: Any) -> None:
    agent = Agent(model=ScriptedModel(json.dumps(said)))
    seen = await collect(agent.stream("hi", output_type=output_type))
    (sent,) = [chunk.to_dict() for chunk in seen if chunk.type == "object-result"]
    assert json.loads(json.dumps(sent))["payload"] == {"object": said}


@pytest.mark.parametrize(
    "found", ["caf\udce9.txt", {"caf\udce9.txt": 1}, {"x": [Tag(tag_name="caf\udce9", weight=math.nan)]}]
)
async def test_results_that_are_no_unicode_can_be_sent(found: Any) -> None:
    model = ScriptedModel(ToolCall("ls", {}), "One file.")
    seen = await collect(Agent(model=model, tools=[Tool(name="ls", function=lambda: found)]).stream("hi"))
    sent = [json.dumps(chunk.to_dict(), ensure_ascii=False, allow_nan=False).encode() for chunk in seen]
    assert [said.count("caf\ufffd".encode()) > 0 for said in sent if b'"result":' in said] == [True, True]


def test_data_that_is_no_unicode_can_be_sent() -> None:
    found = {"caf\udce9": [Path("caf\udce9")]}
    assert DataChunk("data-files", found).to_dict()["data"] == {"caf\ufffd": ["caf\ufffd"]}


async def test_what_processors_send_can_be_sent() -> None:
    class Notes(Processor[Any]):
        def process_output_step(self, args: Any) -> None:
            args.writer.custom(DataChunk("data-tag", Tag(tag_name="q")))
            args.writer.custom(DataChunk("data-file", {"caf\udce9": 1}))

    seen = await collect(Agent(model=ScriptedModel("ok"), processors=[Notes()]).stream("hi"))
    sent = [json.loads(json.dumps(chunk.to_dict())) for chunk in seen]
    assert [chunk["data"] for chunk in sent if chunk["type"] == "data-tag"] == [{"tag_name": "q", "weight": 1.0}]
    assert [chunk["data"] for chunk in sent if chunk["type"] == "data-file"] == [{"caf\ufffd": 1}]
    parts = sent[-1]["payload"]["messages"][0]["parts"]
    assert [part["data"] for part in parts if part["type"] == "data-tag"] == [{"tag_name": "q", "weight": 1.0}]


async def test_the_metadata_of_a_tripwire_can_be_sent() -> None:
    class Block(Processor[Any]):
        def process_output_step(self, args: Any) -> None:
            args.abort("no", metadata=Tag(tag_name="q"))

    seen = await collect(Agent(model=ScriptedModel("ok"), processors=[Block()]).stream("hi"))
    sent = json.loads(json.dumps(seen[-1].to_dict()))
    assert sent["payload"]["metadata"] == {"tag_name": "q", "weight": 1.0}
