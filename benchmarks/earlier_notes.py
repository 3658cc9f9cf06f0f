"""Whether the Observer is shown the earlier notes that the messages before it come back to.

    python benchmarks/earlier_notes.py locomo10.json

LoCoMo's questions name the messages that hold their answers. Where these lie in several sessions, the Observer of the
later session should see the note of the earlier message. Printed is the share of such notes that it sees, if it is
shown the newest notes, or those that ``select_notes`` selects, of a diary of one conversation, or of five in turn.
The notes are the extractive Observer's. LoCoMo is published by snap-research (CC BY-NC 4.0). See README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import accumulate, combinations
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from diarist import Message
from diarist.memory.observational.roles.earlier_notes import select_notes
from diarist.memory.observational.roles.extractive.observer import ExtractiveObserver
from diarist.memory.observational.roles.transcript import render_transcript
from diarist.messages import TextPart
from diarist.tokens import default_counter

LIMITS = (8_000, 4_000, 2_000)
TOGETHER = 5
count = lru_cache(None)(default_counter().count)


class Session(NamedTuple):
    """A session as the Observer reads it, its notes, and the lines of earlier notes that it comes back to.

    ``lines`` has the line of each message that the notes cite.
    """

    transcript: str
    notes: str
    lines: dict[str, str]
    wanted: set[str]


def newest(notes: Sequence[str], _: str, limit: int) -> str:
    """Return the end of the notes."""
    lines = "\n".join(notes).splitlines()
    sizes = accumulate(count(line) + 1 for line in reversed(lines))
    fit = sum(size <= limit for size in sizes)
    return "\n".join(lines[len(lines) - fit :])


def selected(notes: Sequence[str], transcript: str, limit: int) -> str:
    return select_notes(notes, transcript, limit, count)


def messages_of(conversation: dict[str, Any], session: str) -> list[Message]:
    said = datetime.strptime(conversation[f"{session}_date_time"], "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
    return [
        Message(
            id=turn["dia_id"],
            role="user" if turn["speaker"] == conversation["speaker_a"] else "assistant",
            parts=[TextPart(text=turn["text"])],
            created_at=said,
            metadata={"name": turn["speaker"]},
        )
        for turn in conversation[session]
    ]


async def sessions_of(example: dict[str, Any]) -> dict[int, Session]:
    conversation, found = example["conversation"], dict[int, Session]()
    for number in sorted(int(key[8:]) for key in conversation if re.fullmatch(r"session_\d+", key)):
        messages = messages_of(conversation, f"session_{number}")
        observed = await ExtractiveObserver().observe(messages, earlier=[])
        cited = zip(observed.text.splitlines(), observed.citations, strict=True)
        lines = {id: line for line, ids in cited for id in ids}
        found[number] = Session(render_transcript(messages), observed.text, lines, set())
    for question in example["qa"]:
        places = sorted({(int(s), int(m)) for s, m in re.findall(r"D(\d+):(\d+)", " ".join(question["evidence"]))})
        for (one, message), (other, _) in combinations(places, 2):
            line = found[one].lines.get(f"D{one}:{message}") if one in found and other in found else None
            if line and one < other:
                found[other].wanted.add(line)
    return found


def show(name: str, diaries: list[list[Session]]) -> None:
    """Print the shares for diaries of these sessions, in their order."""
    for how in (newest, selected):
        for limit in LIMITS:
            seen, sizes = list[bool](), list[int]()
            for diary in diaries:
                for place, session in enumerate(diary):
                    text = how([before.notes for before in diary[:place]], session.transcript, limit)
                    seen += [line in text for line in session.wanted]
                    sizes.append(count(text))
            print(
                f"{name:20}{how.__name__:10}{limit:>8,}{mean(seen):>10.1%} of {len(seen)}{mean(sizes):>10,.0f} tokens"
            )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?")
    options = parser.parse_args()
    if options.file is None:
        print("give the path of locomo10.json")
        return
    examples = [await sessions_of(example) for example in json.loads(options.file.read_text())]
    show("one conversation", [list(sessions.values()) for sessions in examples])
    groups = [examples[start : start + TOGETHER] for start in range(0, len(examples), TOGETHER)]
    show("five conversations", [_in_turn(group) for group in groups])


def _in_turn(conversations: Sequence[dict[int, Session]]) -> list[Session]:
    last = max(number for sessions in conversations for number in sessions)
    return [each[number] for number in range(1, last + 1) for each in conversations if number in each]


if __name__ == "__main__":
    asyncio.run(main())
