"""What the extractive Observer keeps of conversations, and the CPU time that it takes.

    python benchmarks/extractive.py locomo10.json [--conversations 10]

Prints what ``diarist eval retention`` prints, and the CPU time of the Observer alone, per 1,000 tokens that it reads.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

from diarist.evals.evidence import full_text, read_evidence
from diarist.evals.keyless import evaluate_retention
from diarist.memory.observational.roles.extractive.observer import ExtractiveObserver
from diarist.tokens import default_counter


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--conversations", type=int)
    options = parser.parse_args()
    if options.file is None:
        print("give the path of a file of conversations, such as locomo10.json")
        return
    print((await evaluate_retention(options.file, conversations=options.conversations)).text())
    chats = read_evidence(options.file)[: options.conversations]
    tokens = sum(default_counter().count(full_text(message)) for chat in chats for message in chat.messages)
    spent: list[float] = []
    for _ in range(3):
        started = time.process_time()
        for chat in chats:
            for first in range(0, len(chat.messages), 40):
                await ExtractiveObserver().observe(chat.messages[first : first + 40], earlier=[])
        spent.append(time.process_time() - started)
    print(f"CPU: {1_000_000 * min(spent) / tokens:.2f} ms for 1,000 tokens, in batches of 40 messages")


if __name__ == "__main__":
    asyncio.run(main())
