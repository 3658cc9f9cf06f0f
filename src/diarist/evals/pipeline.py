"""The pipeline: ingest, answer, judge. Each stage writes records, and continues where an earlier process stopped."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import orjson

from diarist.agent import Agent
from diarist.concurrency import gather_or_cancel
from diarist.evals.datasets import dataset as dataset_of
from diarist.evals.datasets.base import Dataset
from diarist.evals.items import Context, History, Question, Session, spread
from diarist.evals.metering import BudgetReached, Meter, MeteredModel, tally
from diarist.evals.progress import Progress
from diarist.evals.records import Record, Records, digest, file_name, write_text
from diarist.evals.settings import BUILT_IN, DEFAULT_SUMMARY_TOKENS, Settings
from diarist.evals.systems.base import Closes, System, TakesNotes
from diarist.evals.systems.baselines import FullHistory, LastMessages, SemanticRecall, Summary
from diarist.evals.systems.observational import ObservationalMemory
from diarist.exceptions import (
    AuthenticationError,
    ConfigError,
    InputError,
    ModelResponseError,
    NotFoundError,
    described,
)
from diarist.messages import Json
from diarist.models import ModelSettings
from diarist.models.base import Model
from diarist.tokens import default_counter

T = TypeVar("T")

Resolve = Callable[[str, str], tuple[Model, bool]]
"""Takes a role and a model's id; returns the model, and whether list prices apply to it."""

MakeSystem = Callable[[str, Path], System]
"""Takes ``module:object`` and a folder; returns the system."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an evaluation.

    Attributes:
        finished: False if the budget stopped it.
        failed: Number of answers and judgements that failed.
        spent: US dollars of this run so far, with earlier processes.
        unpriced: Models without a known price.
    """

    finished: bool
    failed: int
    spent: float
    unpriced: frozenset[str]


class Evaluation:
    """One run of the pipeline, in a folder.

    Args:
        resolve: Returns the model of a role.
        make_system: Returns a system of the user's own.

    Raises:
        InputError: The data cannot be read, or the folder belongs to a run with other settings.
        ConfigError: A model that is needed is missing, or its price is not known and there is a budget.
    """

    def __init__(self, settings: Settings, *, resolve: Resolve, make_system: MakeSystem, progress: Progress) -> None:
        self.settings, self._make_system, self._progress = settings, make_system, progress
        self.dataset: Dataset = dataset_of(
            settings.dataset, settings.data, reading=settings.reading, prompts=settings.prompts
        )
        every = self.dataset.histories
        self.histories = [every[index] for index in spread(len(every), settings.items)]
        self._by_id = {history.id: history for history in every}
        self._asked = [
            (history, question) for history in self.histories for question in _chosen(history, settings.questions)
        ]
        self.out = settings.out
        self._answers = Records(self.out / "answers.jsonl", "system", "run", "question")
        self._judgements = Records(self.out / "judgements.jsonl", "system", "run", "question")
        self._interrupted = Records(self.out / "interrupted.jsonl", "id")
        self.run_id = self._open_folder()
        self._meter = Meter(settings.budget, settings.prices)
        self._models: dict[str, MeteredModel | str] = {}
        self._stores: dict[tuple[str, int], _Memories] = {}
        self._kept: dict[Path, Records] = {}
        reads = any(question.asks == "answer" for _, question in self._asked)
        for role, name in (("observer", settings.observer), ("reader", settings.reader), ("judge", settings.judge)):
            needed = {"observer": False, "reader": reads, "judge": self.dataset.judge == "required"}[role]
            if name is None:
                if needed:
                    raise ConfigError(f"{self.dataset.title} needs --{role}")
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
        if self.dataset.interleaved and "om-recall" in settings.systems:
            raise ConfigError(
                f"{self.dataset.title} asks in the middle of a history, where the tool recall would read what comes "
                "later; leave out --system om-recall"
            )

    async def run(self) -> Outcome:
        """Run all stages, and return the outcome. A cancelled run can be resumed."""
        try:
            stores = await self._ingest()
            if not self._meter.reached:
                await self._answer_and_judge(stores)
        finally:
            self._write_ingest()
            for store in self._stores.values():
                await store.close()
            for model in self._models.values():
                if isinstance(model, MeteredModel):
                    await model.close()
        failed = sum("error" in record for records in (self._answers, self._judgements) for record in records)
        return Outcome(not self._meter.reached, failed, self._meter.spent, frozenset(self._meter.unpriced))

    # -- systems

    def options_of(self, name: str) -> dict[str, Json]:
        """Return everything that the memories and contexts of a system depend on."""
        settings = self.settings
        diary: dict[str, Json] = {
            "system": "om",
            "observer": settings.observer,
            "message_tokens": settings.message_tokens,
            "observation_tokens": settings.observation_tokens,
            "each_session": self.dataset.each_session,
            "diarist": version("diarist"),
        }
        match name:
            case "om" | "om-recall":
                return diary
            case "summary":
                size: Json = settings.summary_tokens
                if size is None:
                    size = diary if "om" in settings.systems else DEFAULT_SUMMARY_TOKENS
                return {**diary, "system": "summary", "size": size}
            case "semantic":
                return {"system": "semantic", "embedder": settings.embedder, "top_k": settings.top_k}
            case "last":
                return {
                    "system": "last",
                    "last_messages": settings.last_messages,
                    "context_tokens": settings.context_tokens,
                }
            case "full":
                return {"system": "full", "context_tokens": settings.context_tokens}
            case _:
                return {"system": name}

    def system(self, name: str, folder: Path, sizes: dict[str, int]) -> System:
        """Return a new system that keeps its data in ``folder``. ``sizes``: tokens of summaries, by history."""
        settings, render = self.settings, self.dataset.sessions_text
        match name:
            case "om" | "om-recall":
                return ObservationalMemory(
                    folder,
                    self._models["observer"],
                    render,
                    message_tokens=settings.message_tokens,
                    observation_tokens=settings.observation_tokens,
                    each_session=self.dataset.each_session,
                    recall=name == "om-recall",
                )
            case "summary":
                model, fixed = self._models["observer"], settings.summary_tokens
                assert isinstance(model, MeteredModel)
                return Summary(
                    folder,
                    model,
                    self._by_id,
                    render,
                    message_tokens=1 if self.dataset.each_session else settings.message_tokens,
                    size=lambda history: fixed or sizes.get(history) or DEFAULT_SUMMARY_TOKENS,
                )
            case "semantic":
                assert settings.embedder is not None
                return SemanticRecall(folder, settings.embedder, render, top_k=settings.top_k)
            case "last":
                return LastMessages(
                    self._by_id, render, count=settings.last_messages, context_tokens=settings.context_tokens
                )
            case "full":
                return FullHistory(self._by_id, render, context_tokens=settings.context_tokens)
            case _:
                return self._make_system(name, folder)

    def questions_of(self, history: History) -> Sequence[Question]:
        """Return the questions whose contexts are taken: all, if they are asked while the history goes on."""
        return history.questions if self.dataset.interleaved else _chosen(history, self.settings.questions)

    # -- the folder

    def _open_folder(self) -> str:
        """Write ``run.json`` and ``questions.jsonl``, or check those of an earlier process. Returns the run's id."""
        settings, path = self.settings, self.out / "run.json"
        bound = settings.bound() | {
            "data": digest(self.dataset.fingerprint),
            "prompts": digest(orjson.dumps(self.dataset.prompts, option=orjson.OPT_SORT_KEYS).decode()),
        }
        run: dict[str, Json] = {"id": uuid4().hex}
        if path.exists():
            run = orjson.loads(path.read_bytes())
            for name, value in bound.items():
                if run["settings"].get(name) != value:
                    raise InputError(
                        f"{self.out} holds a run with {name} = {run['settings'].get(name)!r}, not {value!r}; "
                        "use another --out"
                    )
        systems = list(dict.fromkeys([*run.get("systems", []), *settings.systems]))
        run |= {
            "settings": bound,
            "systems": systems,
            "runs": max(settings.runs, run.get("runs", 0)),
            "diarist": version("diarist"),
            "title": self.dataset.title,
            "paper": self.dataset.paper,
            "source": self.dataset.source,
            "metric": self.dataset.metric,
            "judge_required": self.dataset.judge == "required",
            "exact_prompts": self.dataset.exact_prompts and not self.dataset.own_prompts,
            "data_file": self.dataset.path.name,
            "prices": {model: list(each) for model, each in settings.prices.items()},
        }
        write_text(path, orjson.dumps(run, option=orjson.OPT_INDENT_2).decode() + "\n")
        prompts = orjson.dumps(self.dataset.prompts, option=orjson.OPT_INDENT_2).decode()
        write_text(self.out / "prompts.json", prompts + "\n")
        questions = Records(self.out / "questions.jsonl", "question")
        for history, question in self._asked:
            if questions.get(question.id) is None:
                questions.add(_question_record(history, question))
        return str(run["id"])

    # -- stage 1: memories and contexts

    async def _ingest(self) -> dict[tuple[str, int], _Memories]:
        settings = self.settings
        shared = range(1, settings.runs + 1) if settings.memory_per_run else [0]
        order = sorted(settings.systems, key=_ingest_order)
        work: list[tuple[_Memories, History]] = []
        for number in shared:
            for name in order:
                store = self._stores[name, number] = _Memories(self, name, number)
                work += [(store, history) for history in self.histories]
        self._meter.spent = self._spent_before()
        total = sum(len(history.sessions) for _, history in work)
        with self._progress.stage("Ingest", total, lambda: self._meter.spent) as stage:
            for store in self._stores.values():  # one after the other: the summary is as long as the diary
                await store.prepare(self._stores.get(("om", store.number)))
                await self._each(self.histories, partial(store.ingest, advance=stage.advance))
                if self._meter.reached:
                    break
        return self._stores

    def kept(self, path: Path, *keys: str) -> Records:
        """Return the records in a file of the memories' folders; systems with the same file share them."""
        if path not in self._kept:
            self._kept[path] = Records(path, *keys)
        return self._kept[path]

    def _spent_before(self) -> float:
        """Return the US dollars that earlier processes of this run have spent."""
        own = [self._answers, self._judgements, self._interrupted]
        made = [record for records in self._kept.values() for record in records if record.get("run") == self.run_id]
        return sum(record.get("cost") or 0.0 for records in (*own, made) for record in records)

    def _write_ingest(self) -> None:
        """Copy the records of the ingestion from the memories' folders into the run's."""
        copied = Records(self.out / "ingest.jsonl", "system", "run", "history", "session")
        for store in self._stores.values():
            for record in store.records_of(history.id for history in self.histories):
                own = record["run"] == self.run_id
                record = record | {"system": store.name, "run": store.number, "paid_by_this_run": own}
                if copied.get(store.name, store.number, record["history"], record["session"]) != record:
                    copied.add(record)

    # -- stages 2 and 3: answers and judgements

    async def _answer_and_judge(self, stores: dict[tuple[str, int], _Memories]) -> None:
        settings = self.settings
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
                self._progress.note(f"{name} keeps no list of memories, so extraction is not judged for it")
        with self._progress.stage("Answer and judge", len(work), lambda: self._meter.spent) as stage:

            async def one(item: tuple[_Memories, int, History, Question]) -> None:
                await self._answer(*item)
                await self._judge(*item)
                stage.advance()

            await self._each(work, one)

    async def _answer(self, store: _Memories, run: int, history: History, question: Question) -> None:
        done = self._answers.get(store.name, run, question.id)
        if done is not None and not ("error" in done and self.settings.retry_failed):
            return
        record: Record = {"system": store.name, "run": run, "question": question.id}
        kept = store.contexts.get(question.id)
        failed = store.failure(history.id)
        if kept is None or "error" in kept:
            why = failed or (kept or {}).get("error") or "there is no context"
            self._answers.add(record | {"error": f"ingest: {why}"})
            return
        text = store.text(kept)
        self._publish(store, kept)
        record |= {"context": kept["file"], "context_sha256": kept["sha256"], "context_tokens": kept["tokens"]}
        if question.asks != "answer":
            self._answers.add(record | {"hypothesis": text, "cost": 0.0})
            return
        prompt = self.dataset.reader_prompt(question, text)
        record |= {"prompt_sha256": digest(prompt)}
        model = self._models["reader"]
        assert isinstance(model, MeteredModel)
        settings = ModelSettings(
            temperature=0.0, max_output_tokens=self.settings.reader_tokens or self.dataset.reader_tokens
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

        await self.work(self._answers, record | {"model": model.id}, read)

    async def _judge(self, store: _Memories, run: int, history: History, question: Question) -> None:
        answer = self._answers.get(store.name, run, question.id)
        done = self._judgements.get(store.name, run, question.id)
        if answer is None or (done is not None and not ("error" in done and self.settings.retry_failed)):
            return
        record: Record = {"system": store.name, "run": run, "question": question.id}
        if "error" in answer:
            self._judgements.add(record | {"score": 0.0, "correct": False, "error": f"no answer: {answer['error']}"})
            return
        model = self._models.get("judge")
        replies: list[Json] = []

        async def ask(prompt: str) -> str:
            if not isinstance(model, MeteredModel):
                raise ConfigError(f"{self.dataset.title} needs --judge")
            tokens = self.settings.judge_tokens or self.dataset.judge_tokens
            agent = Agent(model=model, model_settings=ModelSettings(temperature=0.0, max_output_tokens=tokens))
            reply = (await agent.generate(prompt)).text
            replies.append({"prompt_sha256": digest(prompt), "reply": reply})
            return reply

        async def grade() -> Record:
            found = await self.dataset.grade(
                question, answer["hypothesis"], ask if isinstance(model, MeteredModel) else None
            )
            return {
                "score": found.score,
                "correct": found.correct,
                "label": found.label,
                "details": found.details,
                "replies": replies,
            }

        named = {"model": model.id} if isinstance(model, MeteredModel) else {}
        await self.work(self._judgements, record | named, grade, failed={"score": 0.0, "correct": False})

    # -- work

    async def work(
        self, records: Records, record: Record, work: Callable[[], Awaitable[Record]], failed: Record | None = None
    ) -> None:
        """Do a piece of work and add its record, with its time and costs. An error of it becomes part of the record.

        Raises AuthenticationError, since every further call would fail as well, and ConfigError. Adds nothing if the
        budget is spent. The cost of work that did not end goes into ``interrupted.jsonl``.
        """
        began = time.monotonic()
        found: Record | None = None
        with tally() as spent:
            try:
                found = await work()
            except (ConfigError, AuthenticationError):
                raise
            except Exception as error:  # systems and tools of others run here, too
                if not self._meter.reached:
                    found = {**(failed or {}), "error": described(error)}
            finally:
                if found is None and spent.calls:
                    self._interrupted.add({"id": uuid4().hex, "file": records.path.name, **spent.fields()})
        if found is not None:
            records.add(record | found | spent.fields() | {"seconds": round(time.monotonic() - began, 3)})

    async def _each(self, items: Iterable[T], work: Callable[[T], Awaitable[None]]) -> None:
        """Do the work for each item, several at a time, until the budget is spent."""
        waiting = iter(items)

        async def worker() -> None:
            for item in waiting:
                if self._meter.reached:
                    return
                try:
                    await work(item)
                except BudgetReached:
                    return

        await gather_or_cancel([worker() for _ in range(self.settings.concurrency)])

    def _publish(self, store: _Memories, kept: Record) -> None:
        """Put the context's file into the run's folder, as a link to the same file where that is possible."""
        source, target = store.folder / kept["file"], self.out / kept["file"]
        if target.exists():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)


class _Memories:
    """The memories that one system made, and its contexts, in a folder that runs with other readers share.

    Args:
        number: The run, if each has memories of its own; else 0.

    Attributes:
        contexts: Records of contexts, by question.
    """

    def __init__(self, evaluation: Evaluation, name: str, number: int) -> None:
        self.name, self.number = name, number
        self._evaluation = evaluation
        options = evaluation.options_of(name)
        kind = str(options["system"]).replace(":", "-")
        run = f"-run{number}" if number else ""
        dataset = evaluation.dataset
        self.folder = (
            evaluation.settings.memories_folder
            / f"{dataset.name}-{dataset.fingerprint[:8]}"
            / f"{file_name(kind)}-{digest(orjson.dumps(options, option=orjson.OPT_SORT_KEYS).decode())[:8]}{run}"
        )
        self._sessions = evaluation.kept(self.folder / "sessions.jsonl", "history", "session")
        self.contexts = evaluation.kept(self.folder / f"contexts-{file_name(name)}.jsonl", "question")
        self._made: System | None = None
        self._sizes: dict[str, int] = {}

    @property
    def system(self) -> System:
        """Return the system; made when it is first used."""
        if self._made is None:
            self._made = self._evaluation.system(self.name, self.folder, self._sizes)
        return self._made

    @property
    def takes_notes(self) -> bool:
        return isinstance(self.system, TakesNotes)

    async def prepare(self, diaries: _Memories | None) -> None:
        """Look up the size of each summary: that of the diary of the same history."""
        if self.name == "summary" and diaries is not None and isinstance(diaries.system, ObservationalMemory):
            for history in self._evaluation.histories:
                with suppress(NotFoundError):  # its ingestion has failed
                    self._sizes[history.id] = await diaries.system.diary_tokens(history.id)

    async def ingest(self, history: History, advance: Callable[[], None]) -> None:
        """Give the system the sessions that it does not have yet, and take the contexts of questions in between."""
        retry = self._evaluation.settings.retry_failed
        await self._take_contexts(history, 0)
        for place, session in enumerate(history.sessions, 1):
            done = self._sessions.get(history.id, session.id)
            if done is None or ("error" in done and retry):
                record = {"history": history.id, "session": session.id, "run": self._evaluation.run_id}

                async def add(session: Session = session) -> Record:
                    await self.system.add(history.id, session)
                    return {}

                await self._evaluation.work(self._sessions, record, add)
                done = self._sessions.get(history.id, session.id)
                if done is None:  # the budget is spent
                    return
            advance()
            if "error" in done:
                for _ in history.sessions[place:]:
                    advance()
                return
            await self._take_contexts(history, place)

    async def _take_contexts(self, history: History, place: int) -> None:
        evaluation = self._evaluation
        for question in evaluation.questions_of(history):
            if question.after != place or (question.asks == "notes" and not self.takes_notes):
                continue
            done = self.contexts.get(question.id)
            if done is not None and not ("error" in done and evaluation.settings.retry_failed):
                continue
            if place < len(history.sessions) and self._sessions.get(history.id, history.sessions[place].id) is not None:
                continue  # the memory already knows what came later
            run = f"-run{self.number}" if self.number else ""
            file = f"contexts/{file_name(self.name)}{run}/{file_name(question.id)}.txt"

            async def take(question: Question = question, file: str = file) -> Record:
                tools: list[str] = []
                if question.asks == "notes":
                    assert isinstance(self.system, TakesNotes)
                    text = "\n".join(await self.system.notes(history.id, question.session))
                else:
                    context = await self.system.context(history.id, question)
                    text, tools = context.text, [tool.name for tool in context.tools]
                write_text(self.folder / file, text)
                tokens = default_counter().count(text)
                return {"file": file, "sha256": digest(text), "tokens": tokens, "tools": tools}

            await evaluation.work(self.contexts, {"question": question.id, "run": evaluation.run_id}, take)

    def failure(self, history: str) -> str | None:
        """Return why the ingestion of a history failed, or None."""
        found = (record for record in self._sessions if record["history"] == history and "error" in record)
        return next((f"session {record['session']}: {record['error']}" for record in found), None)

    def text(self, kept: Record) -> str:
        """Return the text of a context."""
        return (self.folder / str(kept["file"])).read_text(encoding="utf-8")

    async def live(self, history: History, question: Question) -> Context:
        """Return the context again, with its tools."""
        return await self.system.context(history.id, question)

    def records_of(self, histories: Iterable[str]) -> list[Record]:
        """Return the records of the ingestion of these histories."""
        wanted = set(histories)
        return [record for record in self._sessions if record["history"] in wanted]

    async def close(self) -> None:
        if isinstance(self._made, Closes):
            await self._made.close()


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
