"""CPU time of a model call in an agent of another library, with memory and without, at 1,000 messages.

Run it with the framework's own environment: ``.venv-integrations/pydantic_ai-pinned/bin/python benchmarks/adapters.py
--only pydantic_ai``. The framework's fake model answers at once. Each run gets the whole history of the last.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from diarist import Memory, ObservationalMemoryConfig
from diarist.storage import InMemoryStorage
from diarist.testing.adapter_conformance import AdapterProgram, Travel, question

# The class in the adapter's tests that builds the user's program.
FRAMEWORKS = {
    "pydantic_ai": ("tests.integrations.pydantic_ai.test_adapter", "TestObservationalMemory"),
}


async def measure(build: Callable[..., AdapterProgram], messages: int, rounds: int) -> tuple[float, float]:
    """Return the median milliseconds of CPU a model call, bare and with memory."""
    memory = Memory(
        storage=InMemoryStorage(),
        observational_memory=ObservationalMemoryConfig(model="extractive"),
        await_background=True,
    )
    programs = [build(Travel(), memory=each) for each in (None, memory)]
    number = 0
    while len(await programs[0].stored()) < messages:
        for program in programs:
            await program.ask(question(number))
        number += 1
    costs: list[list[float]] = [[], []]
    for place in range(number, number + rounds):
        for program, found in zip(programs, costs, strict=True):
            program.requests.clear()
            start = time.process_time()
            await program.ask(question(place))
            found.append((time.process_time() - start) / len(program.requests) * 1000)
    return median(costs[0]), median(costs[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(FRAMEWORKS), nargs="*", default=sorted(FRAMEWORKS))
    parser.add_argument("--messages", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    print("| framework | bare, ms | with memory, ms | over, ms | ratio |\n|---|---|---|---|---|")
    for name in options.only:
        module, kind = FRAMEWORKS[name]
        try:
            suite: Any = getattr(import_module(module), kind)()
        except ImportError as error:
            print(f"{name}: not installed here ({error})", file=sys.stderr)
            continue
        bare, ours = asyncio.run(measure(suite.program, options.messages, options.rounds))
        print(f"| {name} | {bare:.1f} | {ours:.1f} | {ours - bare:.1f} | {ours / bare:.2f} |")


if __name__ == "__main__":
    main()
