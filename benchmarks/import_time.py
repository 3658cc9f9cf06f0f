"""What a fresh process waits for: ``import diarist``, and the first reply of an agent.

    python benchmarks/import_time.py [--rounds 9]

Each line is a new Python process, start of the interpreter included; the reply comes from a server in another
process that answers at once. Medians; see README.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from statistics import median

from _provider import provider

REPLY = """
import asyncio
from diarist import Agent

async def main():
    async with Agent(model="openai/gpt-5-mini") as agent:
        assert (await agent.generate("Hello")).text

asyncio.run(main())
"""

PROCESSES = {
    "python itself": "pass",
    "import diarist": "import diarist",
    "import the agent": "from diarist import Agent",
    "import agent and memory": "from diarist import Agent, Memory",
    "first reply": REPLY,
    "first reply, with memory": REPLY.replace("import Agent", "import Agent, Memory")
    .replace('mini")', 'mini", memory=Memory(storage=InMemoryStorage()))')
    .replace("import asyncio", "import asyncio\nfrom diarist.storage import InMemoryStorage")
    .replace('"Hello")', '"Hello", thread="t")'),
    "import openai": "import openai",
    "import pydantic_ai": "import pydantic_ai",
}


def once(code: str, environment: dict[str, str]) -> tuple[float, float]:
    """Seconds on the clock, and seconds of CPU."""
    used, began = os.times(), time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    ended, after = time.perf_counter(), os.times()
    cpu = after.children_user + after.children_system - used.children_user - used.children_system
    return ended - began, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in PROCESSES}
    with provider() as server:
        environment = {**os.environ, "OPENAI_BASE_URL": f"{server}/5/0/v1", "OPENAI_API_KEY": "k"}
        for _ in range(rounds):
            for name, code in PROCESSES.items():
                taken[name].append(once(code, environment))
    print(f"{'':26}{'ms':>6}{'ms CPU':>9}")
    for name, times in taken.items():
        print(f"{name:26}{median(t for t, _ in times) * 1e3:>6.0f}{median(c for _, c in times) * 1e3:>9.0f}")


if __name__ == "__main__":
    main()
