"""Small samples of each data set's format, written by hand."""

from __future__ import annotations

import csv
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


def many(count: int) -> list[dict[str, Any]]:
    """Questions with their numbers, from 0 on."""
    return [
        longmemeval_item(f"q{number}", "multi-session", f"[{number}] How many cats?", "3", "I adopted a third cat.")
        for number in range(count)
    ]


def written(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def locomo() -> list[dict[str, Any]]:
    talk = {
        "speaker_a": "Ann",
        "speaker_b": "Ben",
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1": [
            {"speaker": "Ann", "dia_id": "D1:1", "text": "I went to the support group yesterday."},
            {"speaker": "Ben", "dia_id": "D1:2", "text": "Good!", "blip_caption": "a photo of two dogs"},
        ],
        "session_2_date_time": "9:00 am on 20 May, 2023",
        "session_2": [{"speaker": "Ann", "dia_id": "D2:1", "text": "I paint, I swim and I run."}],
        "session_3_date_time": "9:00 am on 30 May, 2023",
    }
    questions: list[dict[str, Any]] = [
        {"question": "What does Ann do?", "answer": "painting, swimming", "evidence": ["D2:1"], "category": 1},
        {"question": "When did Ann go?", "answer": "7 May 2023", "evidence": ["D1:1"], "category": 2},
        {"question": "Might Ann like a pool?", "answer": "Yes; she swims", "evidence": ["D2:1"], "category": 3},
        {"question": "What is on Ben's photo?", "answer": 2, "evidence": ["D1:2"], "category": 4},
        {"question": "Why does Ben swim?", "evidence": ["D2:1"], "category": 5, "adversarial_answer": "for fun"},
    ]
    return [{"sample_id": "conv-1", "conversation": talk, "qa": questions}]


def personamem(folder: Path) -> Path:
    """Two questions at different places of one context."""
    said = [
        {"role": "system", "content": "Current user persona: Ann, 30."},
        {"role": "user", "content": "User: I like jazz."},
        {"role": "assistant", "content": "Assistant: Noted."},
        {"role": "user", "content": "User: I prefer rock now."},
        {"role": "assistant", "content": "Assistant: Noted, too."},
        {"role": "system", "content": "Current user persona: Ann, 31."},
        {"role": "user", "content": "User: I moved to Rome."},
    ]
    options = "['(a) jazz', '(b) rock', '(c) pop', '(d) none']"
    rows = [("q1", 3, "(a)"), ("q2", 7, "(b)")]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "questions_32k.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            [
                *("persona_id", "question_id", "question_type", "topic", "user_question_or_message"),
                *("correct_answer", "all_options", "shared_context_id", "end_index_in_shared_context"),
            ]
        )
        for id, end, answer in rows:
            writer.writerow([0, id, "recall_user_shared_facts", "music", "What to play?", answer, options, "c1", end])
    (folder / "shared_contexts_32k.jsonl").write_text(json.dumps({"c1": said}) + "\n")
    return folder / "questions_32k.csv"


def halumem() -> dict[str, Any]:
    def session(when: str, text: str, points: list[dict[str, Any]], questions: list[dict[str, Any]]) -> dict[str, Any]:
        turns = [{"role": role, "content": said, "timestamp": when, "dialogue_turn": 0}
                 for role, said in (("user", text), ("assistant", "I see."))]  # fmt: skip
        return {"start_time": when, "dialogue": turns, "memory_points": points, "questions": questions}

    def point(index: int, text: str, source: str = "primary", old: str = "", importance: float = 0.5) -> dict[str, Any]:
        return {
            "index": index, "memory_content": text, "memory_type": "Persona Memory", "memory_source": source,
            "is_update": "True" if old else "False", "original_memories": [old] if old else [],
            "importance": importance,
        }  # fmt: skip

    question = {
        "question": "Where does Martin work?",
        "answer": "At a school.",
        "evidence": [{"memory_content": "Martin works at a school.", "memory_type": "Persona Memory"}],
        "difficulty": "easy",
        "question_type": "Basic Fact Recall",
    }
    first = [
        point(1, "Martin works at a bank.", importance=1.0),
        point(2, "Martin has a dog."),
        point(3, "Martin has a yacht.", "interference"),
    ]
    second = [point(1, "Martin works at a school.", old="Martin works at a bank.")]
    return {
        "uuid": "u1",
        "persona_info": "Name: Martin; Gender: male",
        "sessions": [
            session("Sep 04, 2025, 18:41:23", "I work at a bank, and I have a dog.", first, []),
            session("Dec 15, 2025, 06:11:23", "I left the bank for a school.", second, [question]),
            {**session("Dec 16, 2025, 06:11:23", "What is 2 + 2?", [], []), "is_generated_qa_session": True},
        ],
    }


def beam(folder: Path) -> Path:
    """One chat of two batches."""

    def turn(id: int, text: str, anchor: str = "") -> list[dict[str, Any]]:
        said: dict[str, Any] = {"role": "user", "id": id, "content": text, "index": "1,1"}
        answer = {"role": "assistant", "id": id + 1, "content": "Ok."}
        return [said | ({"time_anchor": anchor} if anchor else {}), answer]

    first = [turn(0, "I begin a budget tracker.", "March-15-2024"), turn(2, "It has a login.")]
    chat = [
        {"batch_number": 1, "turns": first},
        {"batch_number": 2, "turns": [turn(4, "It is deployed now.", "April-02-2024")]},
    ]
    questions = {
        "abstention": [{"question": "Which bank?", "ideal_response": "Not said.", "rubric": ["says it is not said"]}],
        "event_ordering": [
            {
                "question": "In which order?",
                "answer": "tracker, login, deployment",
                "source_chat_ids": [0, 2, 4],
                "rubric": ["tracker", "login", "deployment"],
            }
        ],
        "knowledge_update": [
            {"question": "Is it live?", "answer": "Yes", "source_chat_ids": {"new": [4]}, "rubric": ["yes", "deployed"]}
        ],
    }
    written(folder / "100K" / "1" / "chat.json", chat)
    written(folder / "100K" / "1" / "probing_questions" / "probing_questions.json", questions)
    return folder / "100K"
