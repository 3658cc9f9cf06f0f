"""``python -m tests.exactly_once.replay SEED [STEP NUMBER before|after]``: tell what happens in a schedule.

With a step, the first process dies at that call, as in the tests that crash at each step.
"""

from __future__ import annotations

import sys

from tests.exactly_once.crashing import Crash
from tests.exactly_once.schedule import play


def main(seed: str, *crash: str) -> int:
    chosen = Crash(crash[0], int(crash[1]), crash[2]) if crash else None  # type: ignore[arg-type]
    books = play(int(seed), crash=chosen, telling=True)
    print("\n".join(books.story))
    print(f"--- {len(books.problems)} problems", *books.problems, sep="\n")
    return 1 if books.problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
