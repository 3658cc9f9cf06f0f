"""Parts of an evaluation: progress, prices, records, baselines, and the averages of a whole run's folder."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from pathlib import Path

import orjson
import pytest
from rich.console import Console

from diarist import Usage
from diarist.evals.items import Session, session_text, spread
from diarist.evals.metering import BudgetReached, Meter, MeteredModel, parse_price, tally
from diarist.evals.plots import average_plot
from diarist.evals.progress import Progress, time_left
from diarist.evals.records import Records, file_name
from diarist.evals.report import write_report
from diarist.evals.results import Average, Results
from diarist.evals.settings import Settings
from diarist.evals.statistics import Interval
from diarist.evals.systems.baselines import cut, newest
from diarist.exceptions import InputError
from diarist.messages import Message, Prompt
from diarist.models.base import ModelRequest
from diarist.testing import Reply, ScriptedModel
from diarist.tokens import default_counter
from tests.evals.test_statistics import BY_TYPE


def run_of(folder: Path) -> Path:
    """A run's folder with 468 right answers of 500."""
    settings = {"dataset": "longmemeval", "observer": "m", "reader": "m", "judge": "m"}
    numbers = {"message_tokens": 30_000, "observation_tokens": 40_000, "memory_per_run": False}
    run = {
        "id": "1", "settings": settings | numbers, "systems": ["om"], "runs": 1, "diarist": "0", "title": "LongMemEval",
        "paper": "Wu et al. 2024", "metric": "accuracy", "exact_prompts": True, "data_file": "longmemeval_s.json",
    }  # fmt: skip
    folder.mkdir()
    (folder / "run.json").write_bytes(orjson.dumps(run))
    for type, (right, total) in BY_TYPE.items():
        for number in range(total):
            id = f"{type}-{number}"
            common = {
                "text": "?",
                "answer": "!",
                "date": "",
                "after": 1,
                "asks": "answer",
                "session": "",
                "evidence": [],
            }
            question = {"question": id, "history": id, "type": type, "part": "", "data": {"abstention": number == 0}}
            judged = {
                "score": float(number < right),
                "correct": number < right,
                "label": "",
                "details": {},
                "replies": [],
            }
            key = {"system": "om", "run": 1, "question": id}
            for name, record in (
                ("questions", question | common),
                ("answers", key | {"hypothesis": "…"}),
                ("judgements", key | judged),
            ):
                with (folder / f"{name}.jsonl").open("ab") as file:
                    file.write(orjson.dumps(record) + b"\n")
    return folder


def test_468_of_500_in_a_run_is_93_60_micro_and_94_87_macro(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run")
    results = Results(folder)
    averages = {one.name: one for one in results.averages("om", results.metrics()[0])}
    assert {name: round(100 * one.mean, 2) for name, one in averages.items()} == {
        "knowledge-update": 96.15,
        "multi-session": 87.22,
        "single-session-assistant": 94.64,
        "single-session-preference": 100.0,
        "single-session-user": 95.71,
        "temporal-reasoning": 95.49,
        "micro": 93.6,
        "macro": 94.87,
    }
    assert (averages["micro"].method, averages["macro"].method) == ("Wilson", "MOVER")
    write_report(folder)
    report = (folder / "report.md").read_text()
    assert "|  | micro | 500 | 93.60 | 91.10 to 95.43 |  | Wilson |" in report
    assert "|  | macro | 500 | 94.87 |" in report


class TestProgress:
    @pytest.mark.parametrize(
        ("done", "total", "seconds", "text"),
        [
            (0, 10, 5.0, "time left unknown"),
            (5, 10, 50.0, "0:50 left"),
            (1, 61, 2.0, "2:00 left"),
            (1, 1001, 4.0, "1:06:40 left"),
            (10, 10, 9.0, "0:00 left"),
        ],
    )
    def test_time_left(self, done: int, total: int, seconds: float, text: str) -> None:
        assert time_left(done, total, seconds) == text

    def test_plain_lines_come_at_the_start_now_and_then_and_at_the_end(self) -> None:
        console = Console(file=StringIO(), soft_wrap=True)
        with console.capture() as shown, Progress(console, every=0.0).stage("Ingest", 3, lambda: 1.5) as stage:
            for _ in range(3):
                stage.advance()
        lines = shown.get().splitlines()
        assert lines[0] == "Ingest: 0 of 3, time left unknown, $1.5000 spent"
        assert [line.partition(",")[0] for line in lines[1:]] == ["Ingest: 1 of 3", "Ingest: 2 of 3", "Ingest: 3 of 3"]
        assert lines[-1] == "Ingest: 3 of 3, $1.5000 spent"

    def test_what_was_done_before_takes_no_time(self) -> None:
        console = Console(file=StringIO(), soft_wrap=True)
        with console.capture() as shown, Progress(console, every=60.0).stage("Ingest", 4, lambda: 0.0) as stage:
            for _ in range(3):
                stage.advance(before=True)
        assert shown.get().splitlines()[1:] == ["Ingest: 3 of 4, time left unknown, $0.0000 spent"]

    def test_a_terminal_gets_a_bar(self) -> None:
        console = Console(file=StringIO(), force_terminal=True, width=100)
        with console.capture() as shown, Progress(console).stage("Ingest", 2, lambda: 1.5) as stage:
            stage.advance()
        assert "1/2" in shown.get()
        assert "$1.5000 spent" in shown.get()
        assert "Ingest: " not in shown.get()

    def test_a_narrow_terminal_keeps_the_count(self) -> None:
        console = Console(file=StringIO(), force_terminal=True, width=40)
        with console.capture() as shown, Progress(console).stage("Answer and judge", 20_000, lambda: 1.5) as stage:
            stage.advance()
        assert "1/20,000 Answer and judge: " in shown.get()


class TestMoney:
    def test_prices(self) -> None:
        assert parse_price("openai/my=model=0.25/2") == ("openai/my=model", (0.25, 2.0))
        for text in (
            "openai/x",
            "openai/x=1",
            "openai/x=a/b",
            "openai/x=-1/2",
            "=1/2",
            "openai/x=nan/1",
            "openai/x=1/inf",
        ):
            with pytest.raises(InputError, match="MODEL=INPUT/OUTPUT"):
                parse_price(text)

    def test_a_budget_is_a_number(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="--budget is an amount of US dollars, not nan"):
            Settings(dataset="longmemeval", data=tmp_path, out=tmp_path, budget=float("nan"))

    def test_a_price_of_ones_own_comes_first_and_a_server_of_ones_own_has_none(self) -> None:
        usage = Usage(input_tokens=1_000_000, output_tokens=1_000_000)
        meter = Meter(prices={"openai/gpt-5-mini": (1.0, 2.0)})
        assert meter.price("openai/gpt-5-mini", usage, listed=True) == 3.0
        assert Meter().price("openai/gpt-5-mini", usage, listed=True) not in (None, 3.0)
        assert Meter().price("openai/gpt-5-mini", usage, listed=False) is None

    async def test_calls_are_counted_and_refused_beyond_the_budget(self) -> None:
        reply = Reply(text="yes", usage=Usage(input_tokens=10, output_tokens=1))
        meter = Meter(budget=0.00002, prices={"scripted/model": (1.0, 1.0)})
        model = MeteredModel(ScriptedModel(lambda _: reply), meter, listed=True)
        request = ModelRequest(prompt=Prompt(messages=[]))
        with tally() as spent:
            for _ in range(2):
                async for _ in model.stream(request):
                    pass
        assert (spent.calls, spent.usage.input_tokens, spent.cost) == (2, 20, pytest.approx(0.000022))
        assert model.total == spent
        with pytest.raises(BudgetReached):
            await anext(aiter(model.stream(request)))
        assert meter.reached


class TestRecords:
    def test_the_newest_record_of_a_key_counts(self, tmp_path: Path) -> None:
        records = Records(tmp_path / "a.jsonl", "id")
        records.add({"id": 1, "value": "old"})
        records.add({"id": 1, "value": "new"})
        assert [record["value"] for record in Records(tmp_path / "a.jsonl", "id")] == ["new"]

    def test_a_broken_line_in_the_middle_is_an_error_that_names_it(self, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").write_text('{"id": 1}\n{"id"\n{"id": 3}\n')
        with pytest.raises(InputError, match=r"a\.jsonl, line 2"):
            Records(tmp_path / "a.jsonl", "id")

    def test_ids_become_file_names(self) -> None:
        assert file_name("q1_abs") == "q1_abs"
        assert file_name("../x") != file_name(".._x")
        assert "/" not in file_name("../x")
        assert len(file_name("x" * 300)) < 100


def session(id: str, *texts: str) -> Session:
    return Session(id=id, messages=tuple(Message.user(text) for text in texts))


class TestBaselines:
    def test_the_oldest_text_is_left_out_first(self) -> None:
        sessions = [session("1", "one two three"), session("2", "four five", "six seven"), session("3", "eight")]

        def render(found: list[Session]) -> str:
            return "\n".join(map(session_text, found))

        whole = render(sessions)
        assert newest(sessions, render, None) == whole  # type: ignore[arg-type]
        for most in range(1, 30):
            text = newest(sessions, render, most)  # type: ignore[arg-type]
            assert whole.endswith(text)
            assert default_counter().count(text) <= max(most, default_counter().count("user: eight"))

    def test_a_summary_is_cut_at_a_line_or_a_word(self) -> None:
        assert cut("one\ntwo three\n", 1) == "one"
        assert cut("one two three four", 2) == "one two"

    def test_evenly_spread(self) -> None:
        assert spread(10, 4) == [0, 2, 4, 8]
        assert spread(3, None) == spread(3, 9) == [0, 1, 2]
        assert spread(1, 1) == [0]

    def test_a_larger_choice_contains_each_smaller_one(self) -> None:
        choices = [set(spread(37, wanted)) for wanted in range(1, 38)]
        assert [len(choice) for choice in choices] == [*range(1, 38)]
        assert all(small < large for small, large in pairwise(choices))


def test_settings_that_cannot_work_are_refused() -> None:
    settings = Settings(dataset="locomo", data=Path("x"), out=Path("y"))
    for change, message in (
        ({"systems": ("rag",)}, "unknown system 'rag'"),
        ({"reading": "fast"}, "con or direct"),
        ({"systems": ("semantic",)}, "needs --embedder"),
    ):
        with pytest.raises(InputError, match=message):
            replace(settings, **change)  # type: ignore[arg-type]


def test_ten_systems_have_colours_of_their_own() -> None:
    average = Average("micro", 1, 0.5, Interval(0.1, 0.9), "Wilson", (0.5,))
    plot = average_plot({f"system {number}": [average] for number in range(10)})
    legend = re.findall(r'height="10" fill="(#\w{6})"', plot)
    assert len(set(legend)) == len(legend) == 10
