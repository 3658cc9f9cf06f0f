"""Reads the records of a run's folder, and makes averages, intervals, tests and costs of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from statistics import fmean, median

import orjson

from diarist.evals.datasets import DATASETS
from diarist.evals.datasets.base import Figure, Judged, judged_mean
from diarist.evals.records import Record, Records, answer_digest, judgements_in, questions_in
from diarist.evals.settings import USED_BY, read_run
from diarist.evals.statistics import (
    Difference,
    Interval,
    McNemar,
    bootstrap,
    can_bootstrap,
    difference,
    joined,
    macro,
    mcnemar,
    micro,
    sign_flip,
    wilson,
)
from diarist.exceptions import InputError
from diarist.messages import Json


@dataclass(frozen=True, slots=True)
class Average:
    """A mean with its 95 % interval.

    Attributes:
        method: How the interval was made: ``Wilson``, ``MOVER`` or ``bootstrap``.
        runs: The mean of each run.
    """

    name: str
    questions: int
    mean: float
    interval: Interval
    method: str
    runs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Metric:
    """A way to score items. ``binary``: every value is 0 or 1."""

    name: str
    value: Callable[[Judged], float]
    binary: bool


@dataclass(frozen=True, slots=True)
class Cost:
    """The model calls of one stage.

    Attributes:
        cost: US dollars of the calls with a known price.
        unpriced: Pieces of work with calls of unknown price.
    """

    stage: str
    calls: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    seconds: float
    cost: float
    unpriced: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """A paired comparison of two lists of items with the same questions.

    Attributes:
        test: McNemar's test if every compared score is 0 or 1; else None.
        p: Its p-value, or that of the randomization test.
    """

    first: str
    second: str
    questions: int
    test: McNemar | None
    p: float
    difference: Difference


class Results:
    """The results of a run.

    Args:
        folder: The ``--out`` of ``diarist eval``.

    Raises:
        InputError: The folder holds no run, or a damaged one.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "run.json"
        if not path.is_file():
            raise InputError(f"{folder} holds no run of diarist eval: there is no {path}")
        self.folder = folder
        self.run = read_run(folder)
        self.questions = {str(one["question"]): one for one in questions_in(folder)}
        if not self.questions:
            raise InputError(f"{folder / 'questions.jsonl'} holds no questions")
        self._answers = Records(folder / "answers.jsonl", "system", "run", "question")
        self._judgements = judgements_in(folder)
        self._ingest = Records(folder / "ingest.jsonl", "system", "run", "history", "session")
        self.interrupted = cost_of("interrupted", [*Records(folder / "interrupted.jsonl", "id")])
        self._dataset = DATASETS[self.run["settings"]["dataset"]]

    @property
    def systems(self) -> list[str]:
        """Names of the systems with records."""
        seen = {record["system"] for record in (*self._answers, *self._judgements, *self._ingest)}
        return [name for name in self.run["systems"] if name in seen]

    @cached_property
    def parts(self) -> list[str]:
        """Names of the parts that are scored apart; one empty name if the data set has none."""
        return list(dict.fromkeys(str(question["part"]) for question in self.questions.values()))

    def runs(self, system: str) -> list[int]:
        """Return the numbers of the runs with judgements."""
        return sorted({record["run"] for record in self._judgements if record["system"] == system})

    def items(self, system: str, run: int, part: str = "") -> list[Judged]:
        """Return the judged items of a part, in the order of the questions."""
        found: list[Judged] = []
        for id, question in self.questions.items():
            judgement = self._judgements.get(system, run, id)
            answer = self._answers.get(system, run, id) or {}
            if judgement is None or (answer and judgement.get("answer_sha256") not in (None, answer_digest(answer))):
                continue  # not judged yet, or an earlier answer was
            if question["part"] == part:
                found.append(Judged(question=question, answer=answer, judgement=judgement))
        return found

    def every_item(self) -> Iterator[tuple[str, int, Judged]]:
        """Yield system, run and item of each judged item, in the order of systems, runs and parts."""
        for system in self.systems:
            for run in self.runs(system):
                for part in self.parts:
                    for item in self.items(system, run, part):
                        yield system, run, item

    @property
    def unfinished(self) -> list[str]:
        """Name the runs that are not complete, and what they lack."""
        found: list[str] = []
        for system in self.run["systems"]:
            judged = self.runs(system)
            for number in range(1, self.run["runs"] + 1):
                if number not in judged:
                    found.append(f"{system}, run {number}: nothing is judged yet")
                elif missing := self.missing(system, number):
                    found.append(f"{system}, run {number}: {missing:,} questions are not judged yet")
        return found

    def missing(self, system: str, run: int) -> int:
        """Return the number of questions that are not judged yet; extraction of systems without notes is not asked."""
        judged = sum(len(self.items(system, run, part)) for part in self.parts)
        notes = {id for id, question in self.questions.items() if question["asks"] == "notes"}
        takes = any(self._judgements.get(system, run, id) is not None for id in notes)
        return len(self.questions) - judged - (0 if takes else len(notes))

    def metrics(self, part: str = "") -> list[Metric]:
        """Return the data set's metric, and the judge's verdict if that is another one."""
        every = [item for _, _, item in self.every_item() if item.question["part"] == part]
        binary = all(item.score in (0.0, 1.0) for item in every)
        found = [Metric(self._dataset.metric, lambda item: item.score, binary)]
        if any(item.correct is not None and item.score != item.correct for item in every):
            found.append(Metric("judged correct", lambda item: float(item.correct is True), True))
        return found

    def averages(self, system: str, metric: Metric, part: str = "") -> list[Average]:
        """Return the mean of each type, then micro and macro averages: of questions, and of types."""
        types: dict[str, dict[str, list[float]]] = {}  # the values of each question in all runs
        by_run: list[dict[str, list[float]]] = []  # the values of all questions in each run with some of this part
        for run in self.runs(system):
            of_run: dict[str, list[float]] = {}
            for item in self.items(system, run, part):
                value = metric.value(item)
                types.setdefault(item.type, {}).setdefault(str(item.question["question"]), []).append(value)
                of_run.setdefault(item.type, []).append(value)
            if of_run:
                by_run.append(of_run)
        groups = [[fmean(values) for values in questions.values()] for questions in types.values()]
        if not groups:
            return []
        found = [
            _average(name, group, metric, [fmean(each[name]) for each in by_run if name in each])
            for name, group in zip(types, groups, strict=True)
        ]
        interval = joined([(each.mean, each.interval) for each in found])
        every = [value for group in groups for value in group]
        found.append(_average("micro", every, metric, [micro([*each.values()]) for each in by_run]))
        macros = tuple(macro([*each.values()]) for each in by_run)
        found.append(Average("macro", len(every), macro(groups), interval, "MOVER", macros))
        return found

    def summary(self, system: str) -> list[Figure]:
        """Return the numbers that the paper reports beyond these averages: the mean over the runs."""
        found: dict[str, list[Figure]] = {}  # a run may lack some of them, such as one that has just begun
        for run in self.runs(system):
            for figure in self._dataset.summary(
                [item for part in self.parts for item in self.items(system, run, part)]
            ):
                found.setdefault(figure.name, []).append(figure)
        means = {name: judged_mean([each.value for each in of if each.value is not None]) for name, of in found.items()}
        return [Figure(name, mean, found[name][0].share) for name, mean in means.items()]

    def costs(self, system: str) -> list[Cost]:
        """Return the costs of the stages, also of attempts that were repeated."""
        stages = (("ingest", self._ingest), ("answer", self._answers), ("judge", self._judgements))
        return [cost_of(name, [one for one in records.written if one["system"] == system]) for name, records in stages]

    def context_tokens(self, system: str) -> tuple[float, float] | None:
        """Return the mean and the median size of the contexts in tokens, or None if there are none."""
        sizes = [one["context_tokens"] for one in self._answers if one["system"] == system and "context_tokens" in one]
        return (fmean(sizes), median(sizes)) if sizes else None

    def comparisons(self, metric: Metric, part: str = "", beside: Results | None = None) -> list[Comparison]:
        """Compare each two systems, run by run, and each two runs of a system, on the questions that both have.

        ``beside``: compare with the systems of another folder instead, run by run.
        """
        mine, theirs = self._scores(metric, part), [] if beside is None else beside._scores(metric, part)
        binary = all(value in (0, 1) for _, _, scores in (*mine, *theirs) for value in scores.values())
        if beside is None:
            pairs = [pair for pair in combinations(mine, 2) if pair[0][0] == pair[1][0] or pair[0][1] == pair[1][1]]
            places = "", ""
        else:
            pairs = [(one, other) for one in mine for other in theirs if one[1] == other[1]]
            places = f"{self.folder}: ", f"{beside.folder}: "
        found: list[Comparison] = []
        for (system, run, scores), (other_system, other_run, other_scores) in pairs:
            shared = [id for id in scores if id in other_scores]
            first, second = [scores[id] for id in shared], [other_scores[id] for id in shared]
            if not shared:
                continue
            test = mcnemar([v == 1 for v in first], [v == 1 for v in second]) if binary else None
            found.append(
                Comparison(
                    f"{places[0]}{system}, run {run}",
                    f"{places[1]}{other_system}, run {other_run}",
                    len(shared),
                    test,
                    test.p if test else sign_flip(first, second),
                    difference(first, second),
                )
            )
        return found

    @property
    def settings(self) -> Record:
        """The run's settings, without those that none of its systems uses."""
        systems, settings = set(self.run["systems"]), self.run["settings"]
        return {name: value for name, value in settings.items() if name not in USED_BY or USED_BY[name] & systems}

    def differing(self, other: Results) -> list[str]:
        """Return the settings in which another run differs from this one, such as its reader, in words."""
        mine, others = (one.settings | {"diarist": one.run["diarist"]} for one in (self, other))
        return [
            name if name in ("data", "prompts") else f"{name} ({_words(mine.get(name))} and {_words(others.get(name))})"
            for name in dict.fromkeys([*mine, *others])
            if mine.get(name) != others.get(name)
        ]

    def _scores(self, metric: Metric, part: str) -> list[tuple[str, int, dict[str, float]]]:
        """Return system, run, and the value of each question."""
        return [
            (system, run, {item.question["question"]: metric.value(item) for item in self.items(system, run, part)})
            for system in self.systems
            for run in self.runs(system)
        ]


def _average(name: str, values: Sequence[float], metric: Metric, runs: Sequence[float]) -> Average:
    mean, total = fmean(values), len(values)
    if metric.binary or not can_bootstrap(values):  # Wilson's is on the safe side for other values from 0 to 1
        return Average(name, total, mean, wilson(mean * total, total), "Wilson", tuple(runs))
    return Average(name, total, mean, bootstrap(values), "bootstrap", tuple(runs))


def _words(value: Json) -> str:
    return "none" if value is None else value if isinstance(value, str) else orjson.dumps(value).decode()


def cost_of(stage: str, records: Sequence[Record]) -> Cost:
    """Return the sum over the records of a stage."""

    def total(name: str) -> int:
        return sum(record.get(name) or 0 for record in records)

    return Cost(
        stage=stage,
        calls=total("calls"),
        input_tokens=total("input_tokens"),
        cached_tokens=total("cached_tokens"),
        output_tokens=total("output_tokens"),
        seconds=sum(record.get("seconds") or 0.0 for record in records),
        cost=sum(record.get("cost") or 0.0 for record in records),
        unpriced=sum(record.get("calls", 0) > 0 and record.get("cost") is None for record in records),
    )
