"""``diarist demo`` plays its conversation to the end, shows what memory did, and remembers."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from diarist.cli.app import app
from diarist.cli.demo.replay import THREAD
from diarist.cli.demo.script import load_turns
from diarist.storage import SQLiteStorage
from tests.loopback.openai_server import OpenAIServer
from tests.loopback.server import Answer, HttpError
from tests.scenarios.kit import log_of, raw_rows


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    for key in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    return tmp_path


def demo(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["demo", *map(str, arguments)])


def played(*arguments: object) -> str:
    result = demo(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def number(name: str, text: str) -> int:
    found = re.search(rf"{name} +([\d,]+)", text)
    assert found is not None, name
    return int(found[1].replace(",", ""))


async def stored(path: Path) -> tuple[int, int]:
    """Messages and entries of the diary, after checking that each message is in one place."""
    async with SQLiteStorage(path) as storage:
        await raw_rows(storage, THREAD)
        return len(await storage.list_messages(THREAD)), len((await log_of(storage, THREAD)).entries)


def test_the_conversation_is_long_enough_to_show_something() -> None:
    turns = load_turns()
    replies = [message for turn in turns for message in turn.replies]
    results = [part for message in replies for part in message.tool_parts]
    assert len(turns) + len(replies) >= 150
    assert len({turn.day.date() for turn in turns}) >= 4
    assert [turn.day for turn in turns] == sorted(turn.day for turn in turns)
    assert any(len(part.result_text) > 5_000 for part in results)
    assert any(part.result_text.startswith("Error") for part in results)


@pytest.mark.slow  # tests/test_docs.py plays it too
def test_it_plays_to_the_end_without_a_key(folder: Path) -> None:
    shown = played()
    turns = load_turns()
    assert f"{len(turns)}, " in re.findall(r"Turns, model calls +(.*)", shown)[0]
    assert number("Tokens sent", shown) < number("Tokens with the whole history", shown) / 2
    assert number("of them repeating the last prompt", shown) > number("Tokens sent", shown) * 0.7
    observed, reflected, failed = re.findall(r"Observed, reflected, failed +(\d+), (\d+), (\d+)", shown)[0]
    assert int(observed) > 5
    assert int(reflected) >= 1
    assert failed == "0"
    assert "no model is called" in shown
    assert "Real:" in shown
    assert "Script:" in shown
    assert "The diary:" in shown
    assert f"The database: {folder / 'diarist-demo.db'}" in shown
    messages = sum(1 + len(turn.replies) for turn in turns)
    assert asyncio.run(stored(folder / "diarist-demo.db"))[0] == messages


@pytest.mark.slow
def test_a_second_run_remembers_the_first(folder: Path) -> None:
    played()
    messages, entries = asyncio.run(stored(folder / "diarist-demo.db"))
    again = played()
    assert f"{messages} messages, " in again
    assert "remembers an earlier run" in again
    assert "<observations>" in again
    assert "where were we" in again.lower()
    after, entries_after = asyncio.run(stored(folder / "diarist-demo.db"))
    assert after == messages + 2
    assert entries_after >= entries > 0


def test_a_part_can_be_played_and_is_continued(folder: Path) -> None:
    first = played("--turns", 3)
    assert "3, " in re.findall(r"Turns, model calls +(.*)", first)[0]
    before, _ = asyncio.run(stored(folder / "diarist-demo.db"))
    second = played("--turns", 3)
    assert f"{before} messages are in diarist-demo.db already" in second
    turns = load_turns()
    assert asyncio.run(stored(folder / "diarist-demo.db"))[0] == sum(1 + len(turn.replies) for turn in turns[:6])


def test_a_part_without_a_diary_says_so() -> None:
    shown = played("--turns", 2)
    assert "% more)" in shown
    assert "(nothing was observed)" in shown
    assert "the agent continues from the stored messages" in shown


def test_a_single_entry_is_named_in_the_singular() -> None:
    assert re.search(r"The diary: [\d,]+ tokens, 1 entry, generation 0", played("--turns", 4))


def test_fresh_starts_over(folder: Path) -> None:
    played("--turns", 3)
    before = asyncio.run(stored(folder / "diarist-demo.db"))
    shown = played("--turns", 3, "--fresh")
    assert "already" not in shown
    assert asyncio.run(stored(folder / "diarist-demo.db")) == before


def test_the_database_and_the_thresholds_can_be_chosen(folder: Path) -> None:
    shown = played("--turns", 8, "--storage", "mine.db", "--message-tokens", 2000, "--observation-tokens", 100)
    assert "2,000 tokens of messages and 100 of diary" in shown
    assert number("Observed, reflected, failed", shown) > 0
    assert sorted(path.suffix for path in folder.iterdir())[0] == ".db"
    assert not (folder / "diarist-demo.db").exists()


def test_output_to_a_file_is_plain_text(folder: Path) -> None:
    assert "\x1b" not in played("--turns", 2)


def test_with_a_model_it_says_so_and_the_model_answers(openai_server: OpenAIServer) -> None:
    openai_server.will(*[Answer(text=[f"Model's answer {n}."]) for n in range(3)])
    shown = played("--turns", 3, "--model", "openai/some-model", "--base-url", openai_server.base_url)
    assert "openai/some-model answers and writes the diary" in shown
    assert len(openai_server.requests) == 3
    assert openai_server.requests[-1].body["model"] == "some-model"
    assert "Model's answer 1." in str(openai_server.requests[-1].body["messages"])


def test_a_model_that_fails_ends_with_its_error_and_keeps_the_database(openai_server: OpenAIServer) -> None:
    openai_server.will(Answer(text=["One."]), HttpError(status=401, message="who are you?"))
    result = demo("--turns", 3, "--model", "openai/some-model", "--base-url", openai_server.base_url)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert "who are you?" in result.stderr
    assert asyncio.run(stored(Path("diarist-demo.db")))[0] == 3
    assert number("Turns, model calls", played("--turns", 1)) == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--model", "openai/gpt-5-mini"], "OPENAI_API_KEY"),
        (["--model", "no-slash"], "no-slash"),
        (["--storage", "no-such-folder/x.db"], "no-such-folder"),
        (["--base-url", "http://localhost:1/v1"], "--model"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(arguments: list[str], complaint: str) -> None:
    result = demo(*arguments)
    assert result.exit_code in (1, 2)
    assert complaint in result.stderr
    assert "Traceback" not in result.output


def test_a_file_that_is_no_database_is_not_overwritten(folder: Path) -> None:
    (folder / "notes.txt").write_text("my notes, which are dear to me\n" * 50)
    result = demo("--storage", "notes.txt")
    assert result.exit_code == 1
    assert "notes.txt" in result.stderr
    assert (folder / "notes.txt").read_text().startswith("my notes")


def test_fresh_removes_no_file(folder: Path) -> None:
    (folder / "notes.txt").write_text("my notes, which are dear to me\n" * 50)
    result = demo("--storage", "notes.txt", "--fresh")
    assert result.exit_code == 1
    assert (folder / "notes.txt").read_text().startswith("my notes")
