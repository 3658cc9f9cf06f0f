"""``python -m tests.exactly_once.replay SEED``: tell what happens in a schedule."""

from __future__ import annotations

import sys

from tests.exactly_once.schedule import play


def main(seed: str) -> int:
    books = play(int(seed), telling=True)
    print("\n".join(books.story))
    print(f"--- {len(books.problems)} problems", *books.problems, sep="\n")
    return 1 if books.problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
