"""A run of the demo: plays the conversation turn by turn; a later run asks one more question, answered from memory."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress

from rich.text import Text

from diarist.agent import Agent
from diarist.cli.demo.replay import INSTRUCTIONS, RESOURCE, THREAD, Meter, Settings, count_tokens, make_memory, replay
from diarist.cli.demo.screen import Screen, entries
from diarist.cli.demo.script import load_turns
from diarist.counting import message_tokens
from diarist.exceptions import NotFoundError
from diarist.memory import Memory
from diarist.messages import Message
from diarist.testing import ScriptedModel

QUESTION = "I was away for a while. Where were we, and what is still open?"
SCRIPTED = (
    "(This reply is written in the demo's script: with --model a model would answer here. "
    "What it would read is real, and shown below.)"
)


async def play(settings: Settings, *, limit: int | None, pace: float | None, fresh: bool) -> None:
    """Play at most ``limit`` turns that the database does not have yet. ``fresh`` first deletes the turns it has."""
    screen = Screen()
    pause = pace if pace is not None else (0.1 if screen.console.is_terminal else 0.0)
    known: list[Message] = []
    async with make_memory(settings) as memory:
        with suppress(NotFoundError):
            if fresh:
                await memory.threads.delete(THREAD)
            known = await memory.messages.list(thread=THREAD)
        turns = load_turns()
        left = [turn for turn in turns if turn.asked.id not in {message.id for message in known}][:limit]
        if not left:
            await go_on(memory, settings, screen)
            return
        if known:
            screen.console.print(
                f"{len(known)} messages are in {settings.path} already; the agent continues from there.\n"
            )
        rows = [row for turn in turns for row in (turn.asked, *turn.replies)]
        screen.open(settings, left, largest=count_tokens(rows, memory.counter))
        async with aclosing(replay(memory, settings, left, known)) as reports:
            async for report in reports:
                screen.turn(report)
                await asyncio.sleep(pause)
        log = await memory.diary.get(thread=THREAD)
        screen.close(log, settings, answers=6 if len(left) == len(turns) else 0)


async def go_on(memory: Memory, settings: Settings, screen: Screen) -> None:
    """Ask one more question in the thread of the earlier run, and show the prompt sent for it."""
    say = screen.console.print
    rows = await memory.messages.list(thread=THREAD)
    log = await memory.diary.get(thread=THREAD)
    history = sum(message_tokens(row) for row in rows)
    say(f"[bold]{settings.path} remembers an earlier run.[/bold] Nothing is played again.\n")
    say(f"  {len(rows)} messages, {history:,} tokens")
    say(f"  a diary of {log.tokens:,} tokens in {entries(log)}, generation {log.generation}\n")
    model = ScriptedModel(lambda _: SCRIPTED) if settings.model is None else settings.model
    meter = Meter(memory.counter)
    async with Agent(
        name="assistant", instructions=INSTRUCTIONS, model=model, memory=memory, input_processors=[meter]
    ) as agent:
        result = await agent.generate(QUESTION, thread=THREAD, resource=RESOURCE)
    say(Text(f"  Ada:       {QUESTION}", style="bold"))
    say(Text(f"  Assistant: {result.text}\n"))
    sent = meter.calls[-1].sent
    screen.block(f"What the model was sent: {sent:,} tokens instead of {history:,}", meter.prompt)
    say(f"\nThe database: {settings.path.resolve()}")
    say("--fresh starts over.")
