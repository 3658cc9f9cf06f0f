"""How much of what LoCoMo asks about survives in the notes of the extractive Observer, beside trivial baselines.

    python benchmarks/extractive.py locomo10.json [--conversations 10]

A question counts by the share of the content words of its answer that stand in the notes of the sessions that hold
its evidence. The baselines keep as many characters as the Observer did: the longest sentences, the first sentence of
each message, or the beginning. LoCoMo is published by snap-research (CC BY-NC 4.0). See README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from diarist import Message
from diarist.memory.observational.roles.extractive import ExtractiveObserver
from diarist.messages import TextPart

KINDS = {1: "several facts", 2: "when", 3: "conclusions", 4: "one fact"}
COMMON = frozenset(
    re.findall(
        r"\w+",
        "the a an and or of to in on at for is was were be been are am i he she they it his her their its my your our "
        "with by from as that this did do does has have had not no yes you we me him them who what when where which "
        "how why will would can could about into over after before during then than so but if also just very more most",
    )
)

Ranked = list[tuple[int, Message, str]]


def stems(text: object) -> list[str]:
    words = re.findall(r"[a-z0-9']+", str(text).lower())
    return [re.sub(r"(?<=\w{3})(?:ing|ed|es|s)$", "", word) for word in words if word not in COMMON and len(word) > 1]


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


def sentences(messages: Iterable[Message]) -> Ranked:
    pieces = [(message, each) for message in messages for each in re.split(r"(?<=[.!?])\s+", message.text) if each]
    return [(number, message, each) for number, (message, each) in enumerate(pieces)]


def fill(messages: list[Message], ranked: Ranked, room: int) -> str:
    """Dated lines of the sentences that fit, in their order."""
    kept: Ranked = []
    for number, message, sentence in ranked:
        line = f"- {message.metadata['name']} said: {sentence}"
        if len(line) < room:
            room -= len(line) + 1
            kept.append((number, message, line))
    return f"Date: {messages[0].created_at:%d %B %Y}\n" + "\n".join(
        line for _, _, line in sorted(kept, key=lambda k: k[0])
    )


BASELINES: dict[str, Callable[[Ranked], Ranked]] = {
    "longest sentences": lambda all_: sorted(all_, key=lambda each: -len(each[2])),
    "first sentences": lambda all_: sorted(
        all_, key=lambda each: any(e[1] is each[1] for e in all_[max(0, each[0] - 1) : each[0]])
    ),
    "the beginning": lambda all_: all_,
}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--conversations", type=int, default=10)
    options = parser.parse_args()
    if options.file is None:
        print("give the path of locomo10.json")
        return
    shares: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    lengths: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for each in json.loads(options.file.read_text())[: options.conversations]:
        conversation, notes = each["conversation"], defaultdict[str, dict[int, str]](dict)
        for session in (key for key in conversation if re.fullmatch(r"session_\d+", key)):
            messages, number = messages_of(conversation, session), int(session[8:])
            made = (await ExtractiveObserver().observe(messages, earlier=[])).text
            notes["extractive"][number] = made
            for name, rank in BASELINES.items():
                notes[name][number] = fill(messages, rank(sentences(messages)), len(made) - 20)
            for name, texts in notes.items():
                lengths[name][0] += len(texts[number])
                lengths[name][1] += sum(len(message.text) for message in messages)
        for question in each["qa"]:
            sessions = {int(found) for place in question["evidence"] for found in re.findall(r"D(\d+):", place)}
            answer = stems(question.get("answer", ""))
            if question["category"] not in KINDS or not answer or not sessions:
                continue
            for name, texts in notes.items():
                known = set(stems(" ".join(texts.get(session, "") for session in sessions)))
                share = sum(word in known for word in answer) / len(answer)
                shares[name][KINDS[question["category"]]].append(share)
                shares[name]["all"].append(share)
    kinds = ["all", *KINDS.values()]
    print(f"{'answers in the notes, %':24}{'length':>8}" + "".join(f"{kind:>16}" for kind in kinds))
    for name, found in shares.items():
        cells = "".join(f"{100 * sum(found[kind]) / len(found[kind]):>16.1f}" for kind in kinds)
        print(f"{name:24}{100 * lengths[name][0] / lengths[name][1]:>8.1f}{cells}")


if __name__ == "__main__":
    asyncio.run(main())
