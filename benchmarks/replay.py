"""Replays a recorded conversation with a real model as Observer and Reflector, and prints what memory does.

    python benchmarks/replay.py FILE --base-url http://127.0.0.1:8099/v1 [--turns 40] [--message-tokens 3000]

The user's words and the assistant's replies and tool results are those of the file; each turn runs through an
agent with observational memory, in the background, as in earnest. Prints the event log as it grows, then the diary.
Without a file it does nothing; FILE is any format that ``diarist observe`` reads.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from _replay import Recorded, RecordedTools, turns_of

from diarist import Agent, Memory, ObservationalMemoryConfig, ObservationConfig, ReflectionConfig
from diarist.integrations.conversations import read_conversation
from diarist.models import ModelSettings, resolve
from diarist.storage import Event, SQLiteStorage


async def replay(options: argparse.Namespace) -> None:
    conversation = read_conversation(options.file, select=options.select)
    turns = turns_of(conversation.messages)[options.skip :][: options.turns]
    model = resolve(options.model, base_url=options.base_url, api_key=options.api_key)
    config = ObservationalMemoryConfig(
        model=model,
        observation=ObservationConfig(
            message_tokens=options.message_tokens,
            model_settings=ModelSettings(max_output_tokens=options.max_output_tokens),
        ),
        reflection=ReflectionConfig(
            observation_tokens=options.observation_tokens,
            model_settings=ModelSettings(max_output_tokens=options.max_output_tokens),
        ),
        observe_timeout=600,
        background_timeout=1200,
    )
    actor = Recorded()
    with tempfile.TemporaryDirectory() as folder:
        memory = Memory(storage=SQLiteStorage(Path(folder) / "replay.db"), observational_memory=config)
        agent = Agent(name="replay", model=actor, memory=memory, processors=[RecordedTools(actor)])
        async with agent:
            seen = 0
            for number, turn in enumerate(turns, start=1):
                actor.begin(turn)
                started = time.perf_counter()
                result = await agent.generate([turn.said], thread="replay", max_steps=len(turn.replies) + 1)
                took = time.perf_counter() - started
                stable = sum(step.stable_share for step in result.memory.cache) / max(1, len(result.memory.cache))
                print(
                    f"turn {number}: {took:6.2f} s, {actor.prompts[-1]:,} characters, {stable:.0%} repeated", flush=True
                )
                seen = await show_events(memory, seen)
                if number % options.settle == 0:  # the replies are instant; a person takes longer to read them
                    await memory.settled()
            await memory.settled()
            await show_events(memory, seen)
            log = await memory.diary.get(thread="replay")
            print(
                f"\n{len(log.active)} entries, {len(log.buffered)} waiting, generation {log.generation}\n\n{log.text}"
            )


async def show_events(memory: Memory, seen: int) -> int:
    """Print what has joined the event log; returns the number of the last event."""
    for event in await memory.storage.list_events("thread:replay", after=seen):
        seen = event.seq
        if event.type != "data-om-status":
            print(f"    {event.seq:4} {event.type:28} {_short(event)}", flush=True)
    return seen


def _short(event: Event) -> str:
    data: dict[str, Any] = event.data
    left_out = {
        "cycleId",
        "recordId",
        "threadId",
        "threadIds",
        "config",
        "usage",
        "startedAt",
        "completedAt",
        "failedAt",
    }
    return ", ".join(f"{name} {value}" for name, value in data.items() if name not in left_out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--select", type=int, help="which conversation of the file, from 1")
    parser.add_argument("--model", default="openai/local")
    parser.add_argument("--base-url", help="of an OpenAI-compatible server")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--skip", type=int, default=0, help="turns to leave out at the beginning")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--settle", type=int, default=4, help="wait for background work after so many turns")
    parser.add_argument("--message-tokens", type=int, default=3_000)
    parser.add_argument("--observation-tokens", type=int, default=1_500)
    parser.add_argument("--max-output-tokens", type=int, default=800, help="of an Observer's or Reflector's answer")
    options = parser.parse_args()
    if options.file is None:
        print("name a conversation to replay; see --help")
        return
    asyncio.run(replay(options))


if __name__ == "__main__":
    main()
