"""The ``demo`` command: its options, and the replay that it runs and shows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from diarist.cli.demo.replay import Settings
    from diarist.cli.demo.script import Turn
    from diarist.messages import Message


def demo(
    model: Annotated[
        str | None,
        typer.Option(help="A model for the agent and its diary, such as openai/gpt-5-mini. Default: a script."),
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="Server of the model; any that is OpenAI-compatible.")] = None,
    storage: Annotated[Path, typer.Option(help="The SQLite file.")] = Path("diarist-demo.db"),
    message_tokens: Annotated[int, typer.Option(min=100, help="Messages are observed at so many tokens.")] = 8_000,
    observation_tokens: Annotated[int, typer.Option(min=100, help="The diary is condensed at so many tokens.")] = 6_000,
    turns: Annotated[int | None, typer.Option(min=1, help="Play only so many turns.")] = None,
    pace: Annotated[float | None, typer.Option(help="Seconds between turns; 0.1 on a terminal, else 0.")] = None,
    fresh: Annotated[bool, typer.Option(help="Forget what an earlier run left in the database.")] = False,
) -> None:
    """Watch an agent keep its diary: offline and without a key, unless you name a model."""
    import asyncio

    from diarist.cli.demo.replay import Settings
    from diarist.cli.demo.script import load_turns
    from diarist.exceptions import DiaristError
    from diarist.models import resolve

    if base_url and not model:
        raise typer.BadParameter("it needs --model as well", param_hint="--base-url")
    try:
        settings = Settings(
            path=storage,
            message_tokens=message_tokens,
            observation_tokens=observation_tokens,
            model=resolve(model, base_url=base_url) if model else None,
        )
        asyncio.run(_play(settings, load_turns(), limit=turns, pace=pace, fresh=fresh))
    except DiaristError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from error


async def _play(settings: Settings, turns: list[Turn], *, limit: int | None, pace: float | None, fresh: bool) -> None:
    import asyncio

    from diarist.cli.demo.again import go_on
    from diarist.cli.demo.replay import THREAD, Replay
    from diarist.cli.demo.screen import Screen

    screen = Screen()
    pause = pace if pace is not None else (0.1 if screen.console.is_terminal else 0.0)
    known = await _known(settings, forget=fresh)
    left = [turn for turn in turns if turn.asked.id not in {message.id for message in known}][:limit]
    if not left:
        await go_on(settings, screen)
        return
    replay = Replay(settings, left)
    if known:
        screen.console.print(f"{len(known)} messages are in {settings.path} already; the agent goes on from there.\n")
    screen.open(settings, content=_content(left), largest=_largest(turns))
    try:
        number = 0
        async for report in replay.play(known):
            number += 1
            screen.turn(number, report)
            screen.totals.reports.append(report)
            await asyncio.sleep(pause)
        log = await replay.memory.diary.get(thread=THREAD)
        answers = screen.totals.reports[-6:] if len(left) == len(turns) else []
        screen.close(log, settings.path, scripted=replay.scripted, answers=answers)
    finally:
        await replay.close()


async def _known(settings: Settings, *, forget: bool) -> list[Message]:
    """Return the messages of an earlier run; with ``forget``, delete them and return none."""
    from diarist.cli.demo.replay import THREAD, make_memory
    from diarist.exceptions import NotFoundError

    async with make_memory(settings) as memory:
        try:
            if forget:
                await memory.threads.delete(THREAD)
            return await memory.messages.list(thread=THREAD)
        except NotFoundError:
            return []


def _content(turns: list[Turn]) -> str:
    replies = [message for turn in turns for message in turn.replies]
    results = sum(len(message.tool_parts) for message in replies)
    total = len(turns) + len(replies) + results
    return f"{total} messages: {len(turns)} from Ada, {len(replies)} from her assistant, {results} results of tools."


def _largest(turns: list[Turn]) -> int:
    """Return the tokens of the whole conversation, for the scale of the bars."""
    from diarist.cli.demo.meter import History
    from diarist.tokens import default_counter

    history = History(default_counter())
    for turn in turns:
        history.add([turn.asked, *turn.replies])
    return history.tokens
