"""What an agent costs its own process: CPU time per step and per chunk, ours beside others', in one run.

    python benchmarks/agent_overhead.py [--rounds 7] [--only TEXT] [--pace MICROSECONDS]

Every contestant streams the same answers from the same server in another process. The time is user and system
CPU of this process. A step is an answer of one chunk; a chunk is what each further one adds. See README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

from _provider import provider

PROMPT = "What is the weather in Rome today? " * 5
SHORT, LONG = 1, 1001
STEPS, STREAMS = 60, 3

Ask = Callable[[], Awaitable[int]]
"""One run, read chunk by chunk; returns how many pieces of text came."""

Open = Callable[[str], AbstractAsyncContextManager[Ask]]


@dataclass
class Contestant:
    """A client and its costs so far, in seconds. ``streams`` is False if it gets the whole answer at once."""

    name: str
    open: Open
    streams: bool = True
    steps: list[float] = field(default_factory=list[float])
    chunks: list[float] = field(default_factory=list[float])


# --- contestants ---------------------------------------------------------------------------------------


def bare_http(base_url: str) -> AbstractAsyncContextManager[Ask]:
    """An HTTP client and a JSON decoder: the lower bound."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Ask]:
        import aiohttp
        import orjson

        message = {"role": "user", "content": PROMPT}
        body = orjson.dumps({"model": "m", "stream": True, "messages": [message]})
        async with aiohttp.ClientSession(headers={"Content-Type": "application/json"}) as session:

            async def ask() -> int:
                texts: list[str] = []
                rest = b""
                async with session.post(f"{base_url}/chat/completions", data=body) as response:
                    async for received in response.content.iter_any():
                        *lines, rest = (rest + received).split(b"\n")
                        for line in lines:
                            if line.startswith(b"data: {"):
                                choices = orjson.loads(line[6:])["choices"]
                                if choices and (text := choices[0]["delta"].get("content")):
                                    texts.append(text)
                return len(texts)

            yield ask

    return opened()


@asynccontextmanager
async def openai_client(base_url: str) -> AsyncIterator[Ask]:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=base_url, api_key="k") as client:

        async def ask() -> int:
            stream = await client.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": PROMPT}],
                stream=True,
                stream_options={"include_usage": True},
            )
            pieces = 0
            async for chunk in stream:
                pieces += bool(chunk.choices and chunk.choices[0].delta.content)
            return pieces

        yield ask


def our_model(client: Any) -> Open:
    """The model alone, without an agent."""

    @asynccontextmanager
    async def opened(base_url: str) -> AsyncIterator[Ask]:
        from diarist.messages import Prompt, PromptMessage, TextPart
        from diarist.models import ModelRequest, resolve

        model = resolve("openai/m", base_url=base_url, api_key="k", client=client)
        message = PromptMessage(role="user", parts=[TextPart(text=PROMPT)])

        async def ask() -> int:
            request = ModelRequest(prompt=Prompt(messages=[message]))
            return sum([chunk.type == "text-delta" async for chunk in model.stream(request)])

        yield ask
        await model.close()

    return opened


def our_agent(client: Any, processors: int, kind: str = "sync") -> Open:
    """``Agent.stream`` with processors that return each chunk as it is."""

    @asynccontextmanager
    async def opened(base_url: str) -> AsyncIterator[Ask]:
        from diarist import Agent
        from diarist.models import resolve

        model = resolve("openai/m", base_url=base_url, api_key="k", client=client)
        output = [_processor(number, kind) for number in range(processors)]
        async with Agent(model=model, instructions="Be brief.", output_processors=output) as agent:

            async def ask() -> int:
                async with agent.stream(PROMPT) as stream:
                    return sum([chunk.type == "text-delta" async for chunk in stream])

            yield ask

    return opened


def _processor(number: int, kind: str) -> Any:
    from diarist import Processor

    class Sync(Processor[Any]):
        id = f"pass-{number}"

        def process_output_stream(self, args: Any) -> Any:
            return args.part

    class Async(Processor[Any]):
        id = f"pass-{number}"

        async def process_output_stream(self, args: Any) -> Any:
            return args.part

    return Sync() if kind == "sync" else Async()


@asynccontextmanager
async def pydantic_ai_agent(base_url: str) -> AsyncIterator[Ask]:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("m", provider=OpenAIProvider(base_url=base_url, api_key="k"))
    agent = Agent(model, instructions="Be brief.")

    async def ask() -> int:
        async with agent.run_stream(PROMPT) as result:
            return sum([1 async for _ in result.stream_text(delta=True, debounce_by=None)])

    async with agent:
        yield ask


@asynccontextmanager
async def pydantic_ai_run(base_url: str) -> AsyncIterator[Ask]:
    """Without a stream, which costs pydantic-ai less."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("m", provider=OpenAIProvider(base_url=base_url, api_key="k"))
    agent = Agent(model, instructions="Be brief.")

    async def ask() -> int:
        return bool((await agent.run(PROMPT)).output)

    async with agent:
        yield ask


@asynccontextmanager
async def langchain_agent(base_url: str) -> AsyncIterator[Ask]:
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    agent: Any = create_agent(ChatOpenAI(model="m", base_url=base_url, api_key="k", streaming=True), tools=[])

    async def ask() -> int:
        asked = {"messages": [{"role": "user", "content": PROMPT}]}
        return sum([bool(chunk.content) async for chunk, _ in agent.astream(asked, stream_mode="messages")])

    yield ask


@asynccontextmanager
async def openai_agents(base_url: str) -> AsyncIterator[Ask]:
    from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=base_url, api_key="k")
    agent: Any = Agent(name="a", instructions="Be brief.", model=OpenAIChatCompletionsModel("m", client))

    async def ask() -> int:
        events = Runner.run_streamed(agent, PROMPT).stream_events()
        return sum(
            [getattr(getattr(e, "data", None), "type", "") == "response.output_text.delta" async for e in events]
        )

    yield ask
    await client.close()


def contestants() -> list[Contestant]:
    found = [
        Contestant("bare HTTP client and orjson", bare_http),
        Contestant("our model, lean client", our_model("lean")),
        Contestant("our agent, lean, 0 processors", our_agent("lean", 0)),
        Contestant("our agent, lean, 1 processor", our_agent("lean", 1)),
        Contestant("our agent, lean, 5 processors", our_agent("lean", 5)),
        Contestant("our agent, lean, 5 async ones", our_agent("lean", 5, "async")),
        Contestant("our model, library", our_model("library")),
        Contestant("our agent, library, 0 processors", our_agent("library", 0)),
        Contestant("our agent, library, 5 processors", our_agent("library", 5)),
        Contestant("openai client, bare", openai_client),
        Contestant("pydantic-ai agent, streamed", pydantic_ai_agent),
        Contestant("pydantic-ai agent, run()", pydantic_ai_run, streams=False),
    ]
    if _installed("langchain", "langchain-openai"):
        found.append(Contestant("langchain agent", langchain_agent))
    if _installed("openai-agents"):
        found.append(Contestant("openai-agents", openai_agents))
    return found


def _installed(*packages: str) -> bool:
    try:
        return bool([version(package) for package in packages])
    except PackageNotFoundError:
        return False


# --- measuring -----------------------------------------------------------------------------------------


def cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def cost(open: Open, base_url: str, chunks: int, times: int) -> float:
    """CPU seconds of one answer of so many chunks; connecting and the first answer are not counted."""
    async with open(base_url) as ask:
        got = await ask()
        assert got in (chunks, 1), f"{got} pieces of {chunks}"  # some join what arrived together
        gc.collect()
        before = cpu()
        for _ in range(times):
            await ask()
        return (cpu() - before) / times


def measure(found: list[Contestant], server: str, rounds: int, pace: int) -> None:
    """Measure all clients in turns, so that a slow minute of the machine affects each of them."""
    for number in range(rounds):
        print(f"\rround {number + 1} of {rounds}", end="", flush=True)
        for one in found:
            short = asyncio.run(cost(one.open, f"{server}/{SHORT}/0/v1", SHORT, STEPS))
            whole = asyncio.run(cost(one.open, f"{server}/{LONG}/{pace}/v1", LONG, STREAMS))
            one.steps.append(short)
            one.chunks.append((whole - short) / (LONG - SHORT))
    print("\r", end="")


def report(found: list[Contestant]) -> None:
    floor = found[0]
    print(f"{'':34}{'ms a step':>10}{'µs a chunk':>12}   times the first line")
    for one in found:
        step, chunk = median(one.steps), median(one.chunks)
        ratio = f"{step / median(floor.steps):>8.1f}"
        if one.streams:
            print(f"{one.name:34}{step * 1e3:>10.2f}{chunk * 1e6:>12.1f}   {ratio}{chunk / median(floor.chunks):>8.1f}")
        else:
            print(f"{one.name:34}{step * 1e3:>10.2f}{'–':>12}   {ratio}{'–':>8}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="contestants whose name has this text; the first line stays")
    parser.add_argument("--pace", type=int, default=0, help="microseconds between two chunks")
    given = parser.parse_args()
    first, *others = contestants()
    found = [first, *[one for one in others if given.only in one.name]]
    with provider() as server:
        measure(found, server, given.rounds, given.pace)
    report(found)


if __name__ == "__main__":
    main()
