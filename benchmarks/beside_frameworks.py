"""What frameworks send to the model in a long conversation: with their own compaction, with ours, and with none.

    .venv-integrations/langchain-pinned/bin/python benchmarks/beside_frameworks.py [--only langchain]

Prints a table for each framework that is installed beside diarist; ``make test-integrations NAME=langchain`` sets up
such an environment. The conversation and the model's answers are the same for all. See README.md.
"""

from __future__ import annotations

import argparse
import asyncio
from importlib import import_module
from importlib.metadata import version
from os.path import commonprefix

from _beside import Program, Recorder, turns
from _conversation import count

from diarist.testing.adapter_conformance import SentRequest, assert_whole

FRAMEWORKS = {"langchain": "langchain", "openai_agents": "openai-agents", "pydantic_ai": "pydantic-ai-slim"}
"""Names of frameworks and of their packages."""

COLUMNS = (
    "tokens sent",
    "cached, %",
    "read for notes",
    "calls",
    "cost",
    "largest prompt",
    "facts",
    "broken",
    "in history",
)

CACHED_PRICE = 0.1
"""Of a token that the provider reads from its cache; of others, 1."""


def pieces(request: SentRequest) -> list[str]:
    """Return a request as texts, in the order in which a provider reads it."""
    messages = [f"\n{m.role}: {m.text} {' '.join(m.calls)}{m.result_of}" for m in request.messages]
    return ["\n\n".join(request.system), *messages]


def cached(previous: list[str], now: list[str]) -> int:
    """Return the tokens of the longest common beginning."""
    total = 0
    for one, other in zip(previous, now, strict=False):
        if one != other:
            return total + count(commonprefix([one, other]))  # noqa: RUF071 - of texts, not paths
        total += count(one)
    return total


def is_broken(request: SentRequest) -> bool:
    try:
        assert_whole(request)
    except AssertionError:
        return True
    return False


async def measured(program: Program, recorder: Recorder, number: int) -> tuple[str, ...]:
    """Run the conversation; return the cells of a row."""
    conversation = turns(number)
    for turn in conversation:
        recorder.begin(turn)
        answer = await program.ask(turn.question)
        assert answer.strip() == turn.answer, answer
    requests = [pieces(request) for request in recorder.requests]
    sizes = [sum(map(count, request)) for request in requests]
    reused = sum(map(cached, requests, requests[1:]))
    read = sum(map(count, recorder.read))
    facts = sum(turn.gist in recorder.requests[-1].text for turn in conversation[:5])
    kept = [message.text for message in await program.stored() if message.role == "user"]
    return (
        f"{sum(sizes):,}",
        f"{100 * reused / sum(sizes):.0f}",
        f"{read:,}",
        str(len(recorder.read)),
        f"{sum(sizes) - reused + read + CACHED_PRICE * reused:,.0f}",
        f"{max(sizes):,}",
        f"{facts} of {min(5, number)}",
        str(sum(map(is_broken, recorder.requests))),
        f"{sum(turn.question in kept for turn in conversation)} of {number}",
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=8000, help="the threshold of each compaction")
    parser.add_argument("--only", choices=FRAMEWORKS)
    options = parser.parse_args()
    found = False
    for name, package in FRAMEWORKS.items():
        if options.only not in (None, name):
            continue
        try:
            ways = import_module(f"_beside_{name}").WAYS
        except ImportError:
            if options.only:
                raise
            continue
        found = True
        print(f"\n{package} {version(package)}; {options.turns} turns, threshold {options.tokens:,} tokens\n")
        print("| |", " | ".join(COLUMNS), "|")
        print("|---" * (len(COLUMNS) + 1) + "|")
        for way, build in ways.items():
            recorder = Recorder()
            row = await measured(build(recorder, options.tokens), recorder, options.turns)
            print("|", " | ".join([way, *row]), "|", flush=True)
    if not found:
        print("none of the frameworks is installed: see benchmarks/README.md")


if __name__ == "__main__":
    asyncio.run(main())
