"""``BatchParts``: fewer text deltas, with the same text in the same order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diarist import Agent, DataChunk, tool
from diarist.chunks import Chunk, TextDelta
from diarist.exceptions import ConfigError
from diarist.processors import BatchParts, Processor, ProcessOutputStreamArgs
from diarist.testing import Reasoning, ScriptedModel, ToolCall
from tests.agent.kit import collect, run_both
from tests.properties import examples


def pieces(chunks: list[Chunk]) -> list[str]:
    return [chunk.payload.text for chunk in chunks if isinstance(chunk, TextDelta)]


class Mark(Processor[Any]):
    """A data chunk after every text that has an x."""

    def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
        if isinstance(args.part, TextDelta) and "x" in args.part.payload.text:
            return [args.part, DataChunk("data-x", transient=True)]
        return args.part


@pytest.mark.parametrize(
    ("size", "expected"), [(1, ["a", "b", "c", "d"]), (2, ["ab", "cd"]), (3, ["abc", "d"]), (9, ["abcd"])]
)
async def test_text_deltas_are_joined(size: int, expected: list[str]) -> None:
    def make() -> Agent:
        return Agent(model=ScriptedModel(list("abcd")), output_processors=[BatchParts(size)])

    result, chunks = await run_both(make)
    assert pieces(chunks) == expected
    assert result.text == "abcd"


reply = st.lists(st.one_of(st.text(alphabet="abx", max_size=3), st.builds(Reasoning, st.just("hm"))), max_size=12)


@given(reply=reply, size=st.integers(1, 6))
@settings(max_examples=examples(80), deadline=None)
async def test_text_and_order_of_chunks_stay_the_same(reply: list[Any], size: int) -> None:
    def outline(chunks: list[Chunk]) -> str:
        return "".join(c.payload.text if isinstance(c, TextDelta) else f"<{c.type}>" for c in chunks)

    async def run(*processors: Processor[Any]) -> str:
        agent = Agent(model=ScriptedModel(list(reply)), output_processors=[Mark(), *processors])
        return outline(await collect(agent.stream("?")))

    assert await run(BatchParts(size)) == await run()


async def test_a_tool_call_sends_the_incomplete_batch() -> None:
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    model = ScriptedModel(["let ", "me see", ToolCall("look")], ["all ", "done"])
    chunks = await collect(Agent(model=model, tools=[look], output_processors=[BatchParts(9)]).stream("?"))
    kinds = [chunk.type for chunk in chunks]
    assert pieces(chunks) == ["let me see", "all done"]
    assert kinds.index("text-delta") < kinds.index("tool-call")


async def test_a_batch_is_sent_after_max_wait() -> None:
    # The clock is read at a batch's first text and after every text: a, (a), b, c late enough; d, (d), e.
    times = iter([0.0, 0.1, 0.2, 0.6, 1.0, 1.1, 1.2])
    batch = BatchParts(99, max_wait=0.5, clock=lambda: next(times))
    agent = Agent(model=ScriptedModel(list("abcde")), output_processors=[batch])
    assert pieces(await collect(agent.stream("?"))) == ["abc", "de"]


def test_wrong_options_are_named() -> None:
    with pytest.raises(ConfigError, match="BatchParts: size must be more than 0"):
        BatchParts(0)
    with pytest.raises(ConfigError, match="BatchParts: max_wait must be more than 0"):
        BatchParts(max_wait=0)
