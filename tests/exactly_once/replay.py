"""``python -m tests.exactly_once.replay SEED [outside]``: tell what happens in a schedule."""

from __future__ import annotations

import sys

from tests.exactly_once.schedule import play


def main(seed: str, outside: str = "") -> int:
    ledger = play(int(seed), outside=bool(outside), tracing=True)
    print("\n".join(ledger.trace))
    print(f"--- {len(ledger.problems)} problems", *ledger.problems, sep="\n")
    return 1 if ledger.problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
