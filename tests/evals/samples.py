"""Small samples of each data set's format, written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def longmemeval_item(id: str, type: str, question: str, answer: str, *facts: str) -> dict[str, Any]:
    """A question with one session per fact, a day apart, and a session without evidence."""
    talks = [*facts, "Which tea goes well with a book?"]
    return {
        "question_id": id,
        "question_type": type,
        "question": question,
        "answer": answer,
        "question_date": "2023/06/01 (Thu) 09:00",
        "haystack_session_ids": [f"{id}-{number}" for number in range(len(talks))],
        "haystack_dates": [f"2023/05/{20 + number} (Sat) 02:2{number}" for number in range(len(talks))],
        "haystack_sessions": [
            [{"role": "user", "content": text, "has_answer": True}, {"role": "assistant", "content": "I see."}]
            for text in talks
        ],
        "answer_session_ids": [f"{id}-0"],
    }


def longmemeval() -> list[dict[str, Any]]:
    item = longmemeval_item
    return [
        item("q1", "single-session-user", "Where does Bea live?", "Trieste", "My sister Bea lives in Trieste."),
        item("q2", "multi-session", "How many cats?", "3", "I have two cats.", "I adopted a third cat."),
        item("q3", "knowledge-update", "Which car?", "a red Fiat", "I drive a Volvo.", "I sold it: a Fiat now."),
        item("q4_abs", "temporal-reasoning", "When was I in Oslo?", "Oslo was never mentioned.", "I flew to Rome."),
    ]


def written(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")
    return path
