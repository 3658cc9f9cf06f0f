"""The pipeline: ingest, answer, judge. Each stage writes records, and continues where an earlier process stopped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import orjson

from diarist.agent import Agent
from diarist.evals.datasets import DATASETS
from diarist.evals.items import Context, History, Question, spread
from diarist.evals.lock import locked
from diarist.evals.memories import Memories
from diarist.evals.metering import Meter, MeteredModel
from diarist.evals.progress import Progress
from diarist.evals.records import (
    Record,
    Records,
    answer_digest,
    digest,
    file_name,
    judgements_in,
    questions_in,
    read_text,
    write_text,
)
from diarist.evals.settings import BUILT_IN, USED_BY, Settings, read_run
from diarist.evals.systems.built_in import MakeSystem, options_of, system_of
from diarist.evals.systems.observational import ObservationalMemory
from diarist.evals.work import Worker, stops_run
from diarist.exceptions import ConfigError, InputError, ModelError, ModelResponseError, NotFoundError, described
from diarist.messages import Json
from diarist.models import ModelSettings
from diarist.models.base import Model

T = TypeVar("T")
Resolve = Callable[[str, str], tuple[Model, bool]]
"""Takes a role and a model's id; returns the model, and whether list prices apply to it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an evaluation.

    Attributes:
        finished: False if the budget stopped it.
        failed: The errors of items that failed.
        spent: US dollars of this run so far, with earlier processes.
        unpriced: Models without a known price.
    """

    finished: bool
    failed: tuple[str, ...]
    spent: float
    unpriced: frozenset[str]


class Evaluation:
    """One run of the pipeline, in a folder.

    Args:
        resolve: Returns the model of a role.
        make_system: Returns a system of the user's own.

    Raises:
        InputError: The data cannot be read.
        ConfigError: A model that is needed is missing, or its price is not known and there is a budget.
    """

    def __init__(self, settings: Settings, *, resolve: Resolve, make_system: MakeSystem, progress: Progress) -> None:
        self._settings, self._make_system, self._progress = settings, make_system, progress
        self._dataset = DATASETS[settings.dataset](settings.data, reading=settings.reading, prompts=settings.prompts)
        every = self._dataset.histories
        self._histories = [every[index] for index in spread(len(every), settings.items)]
        _check_unique("histories", [history.id for history in every])
        _check_unique("questions", [question.id for history in every for question in history.questions])
        self._asked = [
            (history, question) for history in self._histories for question in _chosen(history, settings.questions)
        ]
        self._out = settings.out
        self._meter = Meter(settings.budget, settings.prices)
        self._models: dict[str, MeteredModel | str] = {}
        self._stores: dict[tuple[str, int], Memories] = {}
        self._sessions: dict[Path, Records] = {}
        self._sizes: dict[int, dict[str, int]] = {}
        reads = any(question.asks == "answer" for _, question in self._asked)
        for role, name in (("observer", settings.observer), ("reader", settings.reader), ("judge", settings.judge)):
            needed = {"observer": False, "reader": reads, "judge": self._dataset.judge == "required"}[role]
            if name is None:
                if needed:
                    raise ConfigError(f"{self._dataset.title} needs --{role}")
                continue
            if role == "observer" and name == "extractive":
                if "summary" in settings.systems:
                    raise ConfigError("the system 'summary' needs a model as --observer")
                self._models[role] = name
                continue
            model, listed = resolve(role, name)
            self._models[role] = metered = MeteredModel(model, self._meter, listed=listed)
            if settings.budget is not None and not metered.price_known:
                raise ConfigError(
                    f"no price is known for {metered.id}, so --budget cannot hold; add "
                    f"--price {metered.id}=INPUT/OUTPUT (US dollars per million tokens)"
                )
        if self._dataset.interleaved and "om-recall" in settings.systems:
            raise ConfigError(
                f"{self._dataset.title} asks in the middle of a history, where the tool recall would read what comes "
                "later; leave out --system om-recall"
            )
        self._dataset_folder = settings.memories_folder / f"{self._dataset.name}-{self._dataset.fingerprint[:8]}"

    async def run(self) -> Outcome:
        """Run all stages, and return the outcome. A cancelled run can be resumed.

        Raises:
            InputError: The folder is in use, damaged, or belongs to a run with other settings.
            DiaristError: As ``Worker.each``.
        """
        try:
            with locked(self._out):
                return await self._run()
        finally:
            for store in self._stores.values():
                await store.close()
            for model in self._models.values():
                if isinstance(model, MeteredModel):
                    await model.close()

    async def _run(self) -> Outcome:
        self._answers = Records(self._out / "answers.jsonl", "system", "run", "question")
        self._judgements = judgements_in(self._out)
        self._interrupted = Records(self._out / "interrupted.jsonl", "id")
        run = self._read_run()
        self._run_id = str(run["id"])
        self._worker = Worker(
            self._meter,
            self._interrupted,
            concurrency=self._settings.concurrency,
            run_id=self._run_id,
            retry_failed=self._settings.retry_failed,
        )
        settings = self._settings
        for number in range(1, settings.runs + 1) if settings.memory_per_run else [0]:
            for name in sorted(settings.systems, key=_ingest_order):
                self._stores[name, number] = self._memories(name, number)
        self._write_run(run)  # last, since a run keeps its first settings
        try:
            await self._ingest()
            if not self._meter.reached:
                await self._answer_and_judge()
        finally:
            self._write_ingest()
        failed = tuple(
            str(record["error"])  # also of the answer
            for record in self._judgements
            if "error" in record
            and (answer := self._answers.get(record["system"], record["run"], record["question"])) is not None
            and record.get("answer_sha256") == answer_digest(answer)
        )
        return Outcome(not self._meter.reached, failed, self._meter.spent, frozenset(self._meter.unpriced))

    def _questions_of(self, history: History) -> Sequence[Question]:
        """Return the questions whose contexts are taken: all, if they are asked while the history goes on."""
        return history.questions if self._dataset.interleaved else _chosen(history, self._settings.questions)

    # -- the folder

    def _read_run(self) -> Record:
        """Return the content of ``run.json``: that of an earlier process, with this call's additions.

        Raises InputError if the settings or the questions of the earlier process are different.
        """
        settings = self._settings
        bound = settings.bound() | {
            "data": digest(self._dataset.fingerprint),
            "prompts": digest(orjson.dumps(self._dataset.prompts, option=orjson.OPT_SORT_KEYS).decode()),
        }
        run: dict[str, Json] = {"id": uuid4().hex}
        if (self._out / "run.json").exists():
            run = read_run(self._out)
            earlier, now = set(run["systems"]), set(settings.systems)
            for name, users in USED_BY.items():
                if not users & earlier:
                    run["settings"].pop(name, None)  # free until a system uses it
                elif not users & now:
                    bound[name] = run["settings"].get(name)
            _check_unchanged(f"{self._out} holds a run", bound | run["settings"], bound)
        questions = questions_in(self._out)
        for history, question in self._asked:
            if (kept := questions.get(question.id)) is not None:
                given = _question_record(history, question)
                _check_unchanged(f"{self._out} holds the question {question.id!r}", kept, given)
        systems = list(dict.fromkeys([*run.get("systems", []), *settings.systems]))
        return run | {
            "settings": bound,
            "systems": systems,
            "runs": max(settings.runs, run.get("runs", 0)),
            "diarist": version("diarist"),
            "title": self._dataset.title,
            "paper": self._dataset.paper,
            "source": self._dataset.source,
            "metric": self._dataset.metric,
            "judge_required": self._dataset.judge == "required",
            "exact_prompts": self._dataset.exact_prompts and not self._dataset.own_prompts,
            "data_file": self._dataset.path.name,
            "histories": len(self._dataset.histories),
            "reader_tokens": settings.reader_tokens or self._dataset.reader_tokens,
            "judge_tokens": settings.judge_tokens or self._dataset.judge_tokens,
            "began": run.get("began") or datetime.now(UTC).isoformat(timespec="minutes"),
            "prices": {model: list(each) for model, each in settings.prices.items()},
        }

    def _write_run(self, run: Record) -> None:
        write_text(self._out / "run.json", orjson.dumps(run, option=orjson.OPT_INDENT_2).decode() + "\n")
        prompts = orjson.dumps(self._dataset.prompts, option=orjson.OPT_INDENT_2).decode()
        write_text(self._out / "prompts.json", prompts + "\n")
        questions = questions_in(self._out)
        for history, question in self._asked:
            if questions.get(question.id) is None:
                questions.add(_question_record(history, question))

    # -- stage 1: memories and contexts

    async def _ingest(self) -> None:
        self._meter.spent = self._spent_before()
        total = sum(len(history.sessions) for history in self._histories) * len(self._stores)
        with self._progress.stage("Ingest", total, lambda: self._meter.spent) as stage:
            for store in self._stores.values():  # one after the other: a summary is as long as the diary
                await self._worker.each(self._histories, partial(store.ingest, stage=stage))
                if self._meter.reached:
                    break
                if store.name == "om":
                    self._sizes[store.number] |= await self._diary_sizes(store)

    def _memories(self, name: str, number: int) -> Memories:
        """Return the memories of a system. Equal options and data lead to the same folder."""
        dataset = self._dataset
        options = options_of(name, self._settings, dataset)
        kind = file_name(str(options["system"]).replace(":", "-"))
        hashed = digest(orjson.dumps(options, option=orjson.OPT_SORT_KEYS).decode())[:8]
        folder = self._dataset_folder / f"{kind}-{hashed}{f'-run{number}' if number else ''}"
        if folder not in self._sessions:  # om and om-recall share them
            self._sessions[folder] = Records(folder / "sessions.jsonl", "history", "session")
        system = system_of(
            name,
            folder,
            self._settings,
            dataset,
            observer=self._models["observer"],
            sizes=self._sizes.setdefault(number, {}),
            make_system=self._make_system,
        )
        return Memories(
            name,
            number,
            folder,
            self._sessions[folder],
            system=system,
            questions_of=self._questions_of,
            worker=self._worker,
        )

    async def _diary_sizes(self, store: Memories) -> dict[str, int]:
        sizes: dict[str, int] = {}
        if isinstance(store.system, ObservationalMemory):
            for history in self._histories:
                with suppress(NotFoundError):  # its ingestion has failed
                    sizes[history.id] = await store.system.diary_tokens(history.id)
        return sizes

    def _spent_before(self) -> float:
        """Return the US dollars that earlier processes of this run have spent."""
        own = [*self._answers.written, *self._judgements.written, *self._interrupted]
        folder = self._dataset_folder  # of all systems, also those that this call leaves out
        for path in (*folder.glob("*/sessions.jsonl"), *folder.glob("*/contexts-*.jsonl")):
            own += [record for record in Records(path).written if record["run"] == self._run_id]
        return sum(record.get("cost") or 0.0 for record in own)

    def _write_ingest(self) -> None:
        """Copy the records of the ingestion from the memories' folders into the run's."""
        copied = Records(self._out / "ingest.jsonl", "system", "run", "history", "session")
        before = {orjson.dumps(record) for record in copied.written}
        for store in self._stores.values():
            for record in store.records_of(history.id for history in self._histories):
                own = record["run"] == self._run_id
                record = record | {"system": store.name, "run": store.number, "paid_by_this_run": own}
                if orjson.dumps(record) not in before:
                    copied.add(record)

    # -- stages 2 and 3: answers and judgements

    async def _answer_and_judge(self) -> None:
        settings, stores = self._settings, self._stores
        work = [
            (store, run, history, question)
            for run in range(1, settings.runs + 1)
            for name in settings.systems
            for store in [stores[name, run if settings.memory_per_run else 0]]
            for history, question in self._asked
            if question.asks != "notes" or store.takes_notes
        ]
        for name in settings.systems:
            if not stores[name, 1 if settings.memory_per_run else 0].takes_notes and any(
                question.asks == "notes" for _, question in self._asked
            ):
                self._progress.console.print(f"{name} keeps no list of memories, so extraction is not judged for it")
        with self._progress.stage("Answer and judge", len(work), lambda: self._meter.spent) as stage:

            async def one(item: tuple[Memories, int, History, Question]) -> bool:
                store, run, _, question = item
                before = self._is_judged(store, run, question)
                await self._answer(*item)
                await self._judge(*item)
                if self._judgements.get(store.name, run, question.id) is not None:  # else the budget is spent
                    stage.advance(before=before)
                return not before

            await self._worker.each(work, one)

    async def _answer(self, store: Memories, run: int, history: History, question: Question) -> None:
        if self._worker.is_done(self._answers.get(store.name, run, question.id)):
            return
        record: Record = {"system": store.name, "run": run, "question": question.id}
        kept = store.context(history, question)
        failed = store.failure(history.id)
        if kept is None or "error" in kept:
            why = (
                failed
                or (kept or {}).get("error")
                or "the memory knows what came after the question; use another --memories"
            )
            self._answers.add(record | {"error": f"ingest: {why}"})
            return
        text = store.text(kept)
        self._publish(store, kept)
        record |= {"context": kept["file"], "context_sha256": kept["sha256"], "context_tokens": kept["tokens"]}
        if question.asks != "answer":  # the context itself is judged
            self._answers.add(record)
            return
        prompt = self._dataset.reader_prompt(question, text)
        record |= {"prompt_sha256": digest(prompt)}
        model = self._models["reader"]
        assert isinstance(model, MeteredModel)
        settings = ModelSettings(
            temperature=0.0, max_output_tokens=self._settings.reader_tokens or self._dataset.reader_tokens
        )

        async def read() -> Record:
            context = await store.live(history, question) if kept.get("tools") else Context(text="")
            agent = Agent(model=model, tools=list(context.tools), model_settings=settings, max_steps=8)
            result = await agent.generate(prompt)
            calls = [str(call) for step in result.steps for call in step.tool_calls]
            if not result.text.strip():
                raise ModelResponseError(
                    "the answer is empty; a model that thinks first needs more --reader-tokens"
                    if result.stopped_by == "answer"
                    else f"no answer: the run ended with {result.stopped_by}"
                )
            return {"hypothesis": result.text.strip()} | ({"tool_calls": calls} if calls else {})

        await self._worker.do(self._answers, record | {"model": model.id}, read)

    async def _judge(self, store: Memories, run: int, history: History, question: Question) -> None:
        answer = self._answers.get(store.name, run, question.id)
        if answer is None or self._is_judged(store, run, question):
            return
        record: Record = {"system": store.name, "run": run, "question": question.id}
        record["answer_sha256"] = answer_digest(answer)
        model = self._models.get("judge")
        failed: Record = {"score": 0.0, "correct": None if model is None else False}
        if "error" in answer:
            self._judgements.add(record | failed | {"error": f"no answer: {answer['error']}"})
            return
        replies: list[Record] = []
        response = answer.get("hypothesis") or read_text(self._out / answer["context"])

        async def ask(prompt: str, read: Callable[[str], T], *, about: str = "") -> T | None:
            assert isinstance(model, MeteredModel)
            tokens = self._settings.judge_tokens or self._dataset.judge_tokens
            agent = Agent(model=model, model_settings=ModelSettings(temperature=0.0, max_output_tokens=tokens))
            said: Record = {"prompt_sha256": digest(prompt), "about": about, "reply": ""}
            replies.append(said)
            try:
                said["reply"] = (await agent.generate(prompt)).text
                return read(said["reply"])
            except ModelError as error:
                if stops_run(error) and not self._worker.last_try:
                    raise
                said["error"] = described(error)
                return None

        async def grade() -> Record:
            found = await self._dataset.grade(question, response, ask if isinstance(model, MeteredModel) else None)
            graded: Record = {
                "score": found.score,
                "correct": found.correct,
                "label": found.label,
                "details": found.details,
                "replies": replies,
            }
            if errors := [said["error"] for said in replies if "error" in said]:
                of = f"{len(errors):,} of {len(replies):,} judgements failed: " if len(replies) > 1 else ""
                graded["error"] = f"{of}{errors[0]}"
            return graded

        named = {"model": model.id} if isinstance(model, MeteredModel) else {}
        await self._worker.do(self._judgements, record | named, grade, failed | {"replies": replies})

    def _is_judged(self, store: Memories, run: int, question: Question) -> bool:
        """Return True if the present answer has a judgement, and need not be judged again."""
        answer = self._answers.get(store.name, run, question.id)
        judgement = self._judgements.get(store.name, run, question.id)
        if answer is None or judgement is None or judgement.get("answer_sha256") != answer_digest(answer):
            return False
        return self._worker.is_done(answer) and self._worker.is_done(judgement)

    def _publish(self, store: Memories, kept: Record) -> None:
        """Put the context's file into the run's folder, as a link to the same file where that is possible."""
        source, target = store.folder / kept["file"], self._out / kept["file"]
        if target.exists():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)


def _check_unchanged(what: str, kept: Record, given: Record) -> None:
    """Raise InputError if a field has another value than before."""
    for name, value in orjson.loads(orjson.dumps(given)).items():
        if kept.get(name) != value:
            told = f"other {name}" if name in ("data", "prompts") else f"{name} = {kept.get(name)!r:.200}"
            other = "" if name in ("data", "prompts") else f", not {value!r:.200}"
            raise InputError(f"{what} with {told}{other}; use another --out")


def _check_unique(kind: str, ids: Sequence[str]) -> None:
    if len(set(ids)) < len(ids):
        double = next(id for id in ids if ids.count(id) > 1)
        raise InputError(f"two {kind} of the data set have the id {double!r}")


def _ingest_order(name: str) -> int:
    return BUILT_IN.index(name) if name in BUILT_IN else len(BUILT_IN)


def _chosen(history: History, wanted: int | None) -> list[Question]:
    return [history.questions[index] for index in spread(len(history.questions), wanted)]


def _question_record(history: History, question: Question) -> Record:
    return {
        "question": question.id,
        "history": history.id,
        "type": question.type,
        "part": question.part,
        "text": question.text,
        "answer": question.answer,
        "date": question.date,
        "after": question.after,
        "asks": question.asks,
        "session": question.session,
        "evidence": list(question.evidence),
        "data": question.data,
    }
