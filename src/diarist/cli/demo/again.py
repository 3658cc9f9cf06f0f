"""Later runs of the demo: one more question, which the agent answers from memory."""

from __future__ import annotations

from rich.text import Text

from diarist.agent import Agent
from diarist.cli.demo.meter import MeteredModel
from diarist.cli.demo.replay import INSTRUCTIONS, RESOURCE, THREAD, Settings, make_memory
from diarist.cli.demo.screen import Screen
from diarist.counting import message_tokens
from diarist.testing import ScriptedModel

QUESTION = "I was away for a while. Where were we, and what is still open?"
SCRIPTED = (
    "(This reply is written in the demo's script: with --model a model would answer here. "
    "What it would read is real, and shown below.)"
)


async def go_on(settings: Settings, screen: Screen) -> None:
    """Ask one more question in the thread of the earlier run, and show the prompt sent for it."""
    say = screen.console.print
    async with make_memory(settings) as memory:
        rows = await memory.messages.list(thread=THREAD)
        log = await memory.diary.get(thread=THREAD)
        history = sum(message_tokens(row) for row in rows)
        say(f"[bold]{settings.path} remembers an earlier run.[/bold] Nothing is played again.\n")
        say(f"  {len(rows)} messages, {history:,} tokens")
        say(f"  a diary of {log.tokens:,} tokens in {len(log.active)} entries, generation {log.generation}\n")
        actor = ScriptedModel(lambda _: SCRIPTED) if settings.model is None else settings.model
        model = MeteredModel(actor, memory.counter)
        async with Agent(name="assistant", instructions=INSTRUCTIONS, model=model, memory=memory) as agent:
            result = await agent.generate(QUESTION, thread=THREAD, resource=RESOURCE)
        say(Text(f"  Ada:       {QUESTION}", style="bold"))
        say(Text(f"  Assistant: {result.text}\n"))
        sent = model.calls[-1].sent
        screen.block(f"What the model was sent: {sent:,} tokens instead of {history:,}", model.prompt)
    say(f"\nThe database: {settings.path.resolve()}")
    say("--fresh starts over.")
