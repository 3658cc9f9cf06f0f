"""What a fresh process waits for: ``import diarist``, and the first reply of an agent.

    python benchmarks/import_time.py [--rounds 9] [--against CHECKOUT]

Each line is a new Python process, start of the interpreter included, with compiled files as an installed package has
them; the reply comes from a server in another process that answers at once. Medians; see README.md. ``--against``
measures another checkout of diarist in the same rounds and prints the ratios to it.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from statistics import median

from _checkouts import Spent, checkouts
from _provider import provider

REPLY = """
import asyncio
from diarist import Agent

async def main():
    async with Agent(model="openai/gpt-5-mini") as agent:
        assert (await agent.generate("Hello")).text

asyncio.run(main())
"""

MEMORY_ON_SQLITE = """
import tempfile
from diarist import Agent, Memory
from diarist.storage import SQLiteStorage

SQLiteStorage(tempfile.mkdtemp() + "/memory.db")
"""

REPLY_ON_SQLITE = """
import asyncio, tempfile
from diarist import Agent, Memory
from diarist.storage import SQLiteStorage

async def main():
    with tempfile.TemporaryDirectory() as folder:
        memory = Memory(storage=SQLiteStorage(folder + "/memory.db"))
        async with Agent(model="openai/gpt-5-mini", memory=memory) as agent:
            assert (await agent.generate("Hello", thread="t")).text

asyncio.run(main())
"""

PROCESSES = {
    "python itself": "pass",
    "import diarist": "import diarist",
    "import the agent": "from diarist import Agent",
    "import agent and memory": "from diarist import Agent, Memory",
    "first reply": REPLY,
    "import memory and SQLite": MEMORY_ON_SQLITE,
    "first reply, with memory": REPLY_ON_SQLITE,
    "import openai": "import openai",
    "import pydantic_ai": "import pydantic_ai",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--against", metavar="CHECKOUT")
    given = parser.parse_args()
    taken: dict[str, dict[str, list[Spent]]] = defaultdict(lambda: defaultdict(list))
    with provider() as server, checkouts(given.against) as versions:
        environment = {"OPENAI_BASE_URL": f"{server}/5/0/v1", "OPENAI_API_KEY": "k"}
        for turn in range(given.rounds + 1):
            for name, code in PROCESSES.items():
                for version, checkout in versions.items():
                    spent = checkout.run(code, **environment)
                    if turn:  # the first round compiles
                        taken[name][version].append(spent)
    print(
        f"{'':26}{'ms':>6}{'ms CPU':>9}"
        + (f"{'there: ms':>11}{'ms CPU':>9}{'ratio of CPU':>14}" if given.against else "")
    )
    for name, versions_of in taken.items():
        print(f"{name:26}" + shown(*versions_of.values()))


def shown(here: list[Spent], there: list[Spent] | None = None) -> str:
    clock, cpu = median(each.clock for each in here) * 1e3, median(each.cpu for each in here) * 1e3
    line = f"{clock:>6.0f}{cpu:>9.0f}"
    if there is None:
        return line
    other = median(each.cpu for each in there) * 1e3
    return f"{line}{median(each.clock for each in there) * 1e3:>11.0f}{other:>9.0f}{cpu / other:>14.2f}"


if __name__ == "__main__":
    main()
