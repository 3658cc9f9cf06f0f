"""Print what happens in a schedule.

    python -m tests.exactly_once.replay SEED [outside | STEP before | STEP after]

With a step, the first process dies at its first call of it.
"""

from __future__ import annotations

import sys

from tests.exactly_once.crashing import Crash
from tests.exactly_once.schedule import play


def main(seed: str, *more: str) -> int:
    crash = Crash(more[0], 1, more[1]) if len(more) == 2 else None  # type: ignore[arg-type]
    ledger = play(int(seed), crash, outside=more == ("outside",), tracing=True)
    print("\n".join(ledger.trace))
    print(f"--- {len(ledger.problems)} problems", *ledger.problems, sep="\n")
    return 1 if ledger.problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
