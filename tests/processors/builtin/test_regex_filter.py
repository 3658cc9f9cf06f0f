"""``RegexFilter``: no part of a match is sent, wherever the text is split."""

from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diarist import Agent, DataChunk, Memory, Message, ToolContext, tool
from diarist.exceptions import ConfigError
from diarist.processors import Processor, ProcessOutputStreamArgs, RegexFilter
from diarist.processors.patterns import PRESETS
from diarist.storage import SQLiteStorage
from diarist.testing import Reasoning, Reply, ScriptedModel, ToolCall
from tests.agent.kit import collect, run_both, streamed_text
from tests.properties import examples

SECRET = "ada@example.org"

EXAMPLES = {
    "email": ["ada@example.org", "a.b+c@mail.example.co.uk"],
    "credit_card": ["4111 1111 1111 1111", "5500-0000-0000-0004", "378282246310005"],
    "ssn": ["219-09-9999"],
    "iban": ["DE89 3704 0044 0532 0130 00", "GB82WEST12345698765432"],
    "phone": ["+49 30 901820", "(212) 555-0182", "212-555-0182", "+1 (212) 555 0182"],
    "ip_address": ["192.168.0.17"],
    "private_key": ["-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nABC=\n-----END RSA PRIVATE KEY-----"],
    "jwt": ["eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJ"],
    "api_key": ["sk-" + "a1" * 12, "ghp_" + "x" * 36, "AKIA" + "Z" * 16, "xoxb-1234567890-ab"],
    "bearer_token": ["Bearer abcdefghijklmnop1234"],
    "password": ["password: hunter22", 'api_key="0123456789"'],
    "url": ["https://example.org/a?b=c", "www.example.org/x"],
}
HARMLESS = [
    "On 2024-01-02 at 10:30 we met 3 people, 1.5 hours.",
    "Version 1.2.3 costs 1,000 dollars; see section 4.1.",
    "A secret is no secret. The password was long.",
    "Say hello @ home; x = a@b.",
    "A share of 0.4111111111111111, or 42.305356608530021.",
]


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(edges)]


async def everything(agent: Agent, input: str = "Who?", **options: Any) -> str:
    """Return everything that a run sends, as one text: chunks, the text joined, and the result."""
    async with agent.stream(input, **options) as stream:
        chunks = [chunk async for chunk in stream]
        result = await stream.result()
    said = [orjson.dumps(chunk.to_dict(), default=str).decode() for chunk in chunks]
    messages = [orjson.dumps(message.to_dict()).decode() for message in result.messages]
    return "\n".join([*said, streamed_text(chunks), result.text, *messages])


@given(
    before=st.text(max_size=20),
    after=st.text(max_size=20),
    secret=st.sampled_from([text for texts in EXAMPLES.values() for text in texts]),
    places=st.lists(st.integers(0, 200), max_size=12),
)
@settings(max_examples=examples(150), deadline=None)
async def test_a_secret_split_over_chunks_is_never_sent(
    before: str, after: str, secret: str, places: list[int]
) -> None:
    pieces = cut(f"{before} {secret} {after}", places)
    model = ScriptedModel([Reasoning(f"I know {secret} "), *pieces])
    out = await everything(Agent(model=model, output_processors=[RegexFilter()]))
    assert secret not in out
    assert orjson.dumps(secret).decode().strip('"') not in out


@given(text=st.sampled_from(HARMLESS), places=st.lists(st.integers(0, 80), max_size=12))
@settings(max_examples=examples(60), deadline=None)
async def test_text_without_a_match_is_unchanged(text: str, places: list[int]) -> None:
    agent = Agent(model=ScriptedModel(cut(text, places)), output_processors=[RegexFilter()])
    chunks = await collect(agent.stream("?"))
    assert streamed_text(chunks) == text


@pytest.mark.parametrize(
    ("label", "text"), [(label, text) for label, texts in EXAMPLES.items() for text in texts], ids=str
)
async def test_every_preset_finds_its_matches(label: str, text: str) -> None:
    preset = next(name for name, rules in PRESETS.items() if label in rules)
    agent = Agent(model=ScriptedModel(f"It is {text} ."), output_processors=[RegexFilter((preset,))])
    assert (await agent.generate("?")).text == f"It is [{label.upper()}] ."


async def test_generate_and_stream_give_the_same_text() -> None:
    def make() -> Agent:
        return Agent(model=ScriptedModel(["Write to ada@exam", "ple.org", "!"]), output_processors=[RegexFilter()])

    result, chunks = await run_both(make)
    assert result.text == streamed_text(chunks) == "Write to [EMAIL]!"


async def test_a_match_at_the_very_end_is_found() -> None:
    agent = Agent(model=ScriptedModel(["mail ada@example.", "org"]), output_processors=[RegexFilter()])
    assert (await agent.generate("?")).text == "mail [EMAIL]"


async def test_a_match_over_two_blocks_is_never_sent_whole() -> None:
    model = ScriptedModel(["mail ada@example", Reasoning("hm"), ".org and on"])
    out = await everything(Agent(model=model, output_processors=[RegexFilter()]))
    assert SECRET not in out


async def test_matches_may_overlap_and_be_of_any_length() -> None:
    long = "<" + "x" * 20_000 + ">"
    own = RegexFilter((), patterns={"long": "<x+>", "tail": "x{3}> and"})
    text = f"a {long} and b"
    pieces = [text[i : i + 700] for i in range(0, len(text), 700)]
    agent = Agent(model=ScriptedModel(pieces), output_processors=[own])
    assert (await agent.generate("?")).text == "a [LONG] b"


@tool
def look_up(name: str, context: ToolContext[Any]) -> dict[str, str]:
    """Find the address of a person."""
    context.run.writer.custom(DataChunk("data-found", {"mails": [f"{name} <{SECRET}>"]}))
    return {SECRET: f"mailto {SECRET}"}


def bytes_in(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


def escaped(text: str) -> str:
    return "".join(f"\\u{ord(char):04x}" for char in text)


@pytest.mark.parametrize(
    "args",
    [
        {"name": SECRET},
        {"name": "x", "more": [{SECRET: 1}]},
        f'{{"name": "{escaped(SECRET)}"}}',
        f'{{"name": "{SECRET}", "name": "x"}}',
        f'{{"name": "{escaped(SECRET)}", "name": "x"}}',
        f'{{"name": "{SECRET}',
        f'{{"name": "{escaped(SECRET)}',
    ],
)
async def test_tools_data_and_storage_are_filtered_too(args: Any, tmp_path: Path) -> None:
    model = ScriptedModel(ToolCall("look_up", args), ["Done: ", "ada@", "example.org"])
    guard = RegexFilter()
    async with SQLiteStorage(tmp_path / "memory.db") as storage:
        agent = Agent(
            model=model,
            tools=[look_up],
            memory=Memory(storage=storage),
            input_processors=[guard],
            output_processors=[guard],
        )
        out = await everything(agent, f"I am {SECRET}", thread="t")
        stored = "".join(str(message.to_dict()) for message in await storage.list_messages("t"))
    for text in (out, stored, *(request.text for request in model.requests)):
        assert SECRET not in text
        assert escaped(SECRET) not in text
    assert "I am [EMAIL]" in stored
    assert "Done: [EMAIL]" in stored
    assert SECRET.encode() not in bytes_in(tmp_path)


async def test_a_matching_number_becomes_text() -> None:
    model = ScriptedModel(ToolCall("pay", {"card": 4111111111111111, "times": 2}), "paid")
    seen: list[Any] = []

    @tool
    def pay(card: Any, times: int) -> str:
        """Pay."""
        seen.append((card, times))
        return "ok"

    await Agent(model=model, tools=[pay], output_processors=[RegexFilter()]).generate("?")
    assert seen == [("[CREDIT_CARD]", 2)]


async def test_only_the_deltas_of_tool_calls_are_left_out() -> None:
    def make(*processors: Processor[Any]) -> Agent:
        model = ScriptedModel(["Let me see. ", ToolCall("look_up", {"name": "x"})], "Nobody.")
        return Agent(model=model, tools=[tool(name="look_up")(lambda name="": "none")], output_processors=processors)

    plain = await collect(make().stream("?"))
    filtered = await collect(make(RegexFilter()).stream("?"))
    assert [chunk.type for chunk in filtered] == [chunk.type for chunk in plain if chunk.type != "tool-call-delta"]


async def test_a_denied_call_stays_denied() -> None:
    pay = tool(name="pay", needs_approval=True)(lambda: "paid")
    model = ScriptedModel(ToolCall("pay"), "I see.")
    agent = Agent(model=model, tools=[pay], output_processors=[RegexFilter()])
    stopped = await agent.generate("?")
    result = await agent.resume({stopped.pending[0].call_id: f"ask {SECRET}"}, of=stopped)
    (call,) = result.steps[0].tool_calls
    assert (call.state, call.result) == ("denied", "ask [EMAIL]")


async def test_tools_false_leaves_tool_calls_unchanged() -> None:
    seen: list[str] = []

    @tool
    def send(to: str) -> str:
        """Send."""
        seen.append(to)
        return f"sent to {to}"

    model = ScriptedModel(ToolCall("send", {"to": SECRET}), f"Sent to {SECRET}.")
    result = await Agent(model=model, tools=[send], output_processors=[RegexFilter(tools=False)]).generate("?")
    assert seen == [SECRET]
    assert result.text == "Sent to [EMAIL]."
    assert SECRET in model.requests[1].text


class Announce(Processor[Any]):
    """Writes a data chunk after every text delta."""

    def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
        if args.part.type != "text-delta":
            return args.part
        return [args.part, DataChunk("data-mark", args.part.payload.text, transient=True)]


async def test_other_chunks_keep_their_order() -> None:
    pieces = ["one ", "two@", "three", " four"]
    agent = Agent(model=ScriptedModel(pieces), output_processors=[Announce(), RegexFilter()])
    told = ""
    for chunk in await collect(agent.stream("?")):
        if chunk.type == "text-delta":
            told += chunk.payload.text
        elif isinstance(chunk, DataChunk):
            told += "|"
    assert told == "one |two@|three| four|"


async def test_a_chunk_inside_a_match_does_not_hide_it() -> None:
    agent = Agent(model=ScriptedModel(["ada@", "example.org", "."]), output_processors=[Announce(), RegexFilter()])
    chunks = await collect(agent.stream("?"))
    assert streamed_text(chunks) == "[EMAIL]."
    assert sum(chunk.type == "data-mark" for chunk in chunks) == 3


async def test_changed_reasoning_loses_its_signature() -> None:
    thought = [Reasoning(f"ask {SECRET}", signature="sig-1"), Reasoning(" fine", signature="sig-2"), "ok"]
    result = await Agent(model=ScriptedModel(thought), output_processors=[RegexFilter()]).generate("?")
    parts = [part for part in result.messages[0].parts if part.type == "reasoning"]
    assert [(part.text, part.signature) for part in parts] == [("ask [EMAIL]", None), (" fine", "sig-2")]


async def test_block_ends_the_run_before_any_part_of_the_match() -> None:
    def make() -> Agent:
        guard = RegexFilter(("pii",), strategy="block")
        return Agent(model=ScriptedModel(["Hello ad", "a@example.org, hi"]), output_processors=[guard])

    result, chunks = await run_both(make)
    assert result.text == ""
    assert result.tripwire is not None
    assert result.tripwire.reason == "the output contains email"
    assert result.tripwire.metadata == {"label": "email"}
    assert streamed_text(chunks) in ("", "Hello ")


async def test_a_blocked_input_calls_no_model() -> None:
    model = ScriptedModel()
    result = await Agent(model=model, input_processors=[RegexFilter(strategy="block")]).generate(f"I am {SECRET}")
    assert result.tripwire is not None
    assert result.tripwire.reason == "the input contains email"
    assert model.requests == []


async def test_warn_lets_the_text_pass_and_logs_only_labels(caplog: pytest.LogCaptureFixture) -> None:
    guard = RegexFilter(("pii",), strategy="warn")
    model = ScriptedModel([f"{SECRET} and {SECRET}"])
    with caplog.at_level(logging.WARNING, logger="diarist"):
        result = await Agent(model=model, output_processors=[guard]).generate("?")
    assert result.text == f"{SECRET} and {SECRET}"
    (record,) = caplog.records
    assert record.message == f"processor 'regex-filter', output of run {result.run_id}: the output contains email"
    assert SECRET not in caplog.text


async def test_phases_and_replacement_and_own_patterns() -> None:
    model = ScriptedModel(f"order 17 for {SECRET}")
    guard = RegexFilter((), patterns=[r"order \d+"], replacement="<{label}>", phases=("output",))
    agent = Agent(model=model, input_processors=[guard], output_processors=[guard])
    assert (await agent.generate("order 17")).text == f"<PATTERN-1> for {SECRET}"
    assert "order 17" in model.requests[0].text


async def test_messages_from_memory_are_not_filtered_again() -> None:
    model = ScriptedModel("ok")
    history = [Message.assistant("hello"), Message.user(f"it is {SECRET}")]
    await Agent(model=model, input_processors=[RegexFilter()]).generate(history)
    assert "it is [EMAIL]" in model.requests[0].text


async def test_the_callers_message_objects_are_not_changed() -> None:
    model = ScriptedModel("ok")
    given = Message.user(f"it is {SECRET}")
    await Agent(model=model, input_processors=[RegexFilter()]).generate([given])
    assert given.text == f"it is {SECRET}"
    assert SECRET not in model.requests[0].text


async def test_a_failed_stream_sends_no_part_of_a_match() -> None:
    model = ScriptedModel(Reply(text=["mail ada@exam", "ple.or"], error_after=RuntimeError("cut")))
    agent = Agent(model=model, output_processors=[RegexFilter()])
    async with agent.stream("?") as stream:
        chunks = [chunk async for chunk in stream]
        with pytest.raises(Exception, match="cut"):
            await stream.result()
    assert streamed_text(chunks) in ("mail ", "mail [EMAIL]")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"presets": ("pi",)}, "RegexFilter: presets must be one of 'pii', 'secrets', 'urls', not 'pi'"),
        ({"presets": "pii"}, "presets must be a list of texts"),
        ({"presets": 5}, "presets must be a list of texts"),
        ({"phases": "input"}, "phases must be a list of texts"),
        ({"phases": ()}, "phases is empty; give 'input', 'output' or both"),
        ({"patterns": 5}, "patterns must be"),
        ({"replacement": 5}, "replacement must be a text"),
        ({"tools": "no"}, "tools must be True or False"),
        ({"presets": ()}, "give at least one"),
        ({"strategy": "hide"}, "RegexFilter: strategy must be one of"),
        ({"phases": ("inputs",)}, "RegexFilter: phases must be one of"),
        ({"patterns": {"x": "("}}, "RegexFilter: patterns: the pattern 'x' is no regular expression"),
        ({"patterns": "abc"}, "not a single pattern"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        RegexFilter(**options)


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("at https://example.org/?m=ada@example.org", "at https://example.org/?[EMAIL]"),
        ("at https://example.org/to/ada@example.org", "at https://example.org/to/[EMAIL]"),
        ("at https://social.example/@ada.b.c/posts", "at https://social.example/@ada.b.c/posts"),
        ("by R&D@example.org", "by [EMAIL]"),
        ("from bounces+ada=example.org@list.example", "from [EMAIL]"),
    ],
)
async def test_an_address_in_a_url_leaves_the_url(text: str, redacted: str) -> None:
    model = ScriptedModel("ok")
    await Agent(model=model, input_processors=[RegexFilter(["pii"])]).generate(text)
    assert model.requests[0].text == f"[user]\n{redacted}"
