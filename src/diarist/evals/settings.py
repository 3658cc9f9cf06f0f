"""The options of an evaluation, and which of them a run's folder is bound to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path
from typing import cast

from diarist.evals.datasets import DATASETS
from diarist.evals.records import Record, read_record
from diarist.exceptions import InputError
from diarist.messages import Json
from diarist.models.openai_chat.connections import without_secrets
from diarist.models.providers import PROVIDERS, server_url

BUILT_IN = ("om", "om-recall", "summary", "semantic", "last", "full")
"""Names of the systems that diarist compares, in the order in which they are ingested."""

DEFAULT_SUMMARY_TOKENS = 4_000

_DIARIES = frozenset({"om", "om-recall", "summary"})
USED_BY: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("observer", "observer_url", "message_tokens", "observation_tokens", "observer_tokens"), _DIARIES),
    "summary_tokens": frozenset({"summary"}),
    "last_messages": frozenset({"last"}),
    **dict.fromkeys(("top_k", "embedder", "embedder_url"), frozenset({"semantic"})),
    "context_tokens": frozenset({"full", "last"}),
}
"""Settings that only some systems use. The first of these systems in a run binds it to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of ``diarist eval``; money is in US dollars.

    Attributes:
        dataset: Name of the data set.
        data: Its file or folder.
        out: The run's folder.
        observer, reader, judge: Model ids, or ``module:object``; the observer may be ``extractive``. The reader and the
            judge may be None if nothing needs them.
        urls: Addresses of servers, by role (``observer``, ``reader``, ``judge``).
        systems: Names of ``BUILT_IN`` systems, or ``module:object``.
        runs: Number of times each question is answered and judged.
        items, questions: Number of histories, and of questions of each; None for all.
        memory_per_run: Every run ingests again, instead of sharing the memories.
        memories: Folder of ingested memories; default ``memories`` beside ``out``.
        prices: US dollars per million input and output tokens, by model id.
    """

    dataset: str
    data: Path
    out: Path
    observer: str = "extractive"
    reader: str | None = None
    judge: str | None = None
    urls: Mapping[str, str] = field(default_factory=dict[str, str])
    systems: tuple[str, ...] = ("om",)
    runs: int = 1
    items: int | None = None
    questions: int | None = None
    reading: str = "con"
    prompts: Path | None = None
    message_tokens: int = 30_000
    observation_tokens: int = 40_000
    summary_tokens: int | None = None
    last_messages: int = 50
    top_k: int = 20
    embedder: str | None = None
    context_tokens: int | None = None
    observer_tokens: int | None = None
    reader_tokens: int | None = None
    judge_tokens: int | None = None
    budget: float | None = None
    prices: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    concurrency: int = 4
    memory_per_run: bool = False
    memories: Path | None = None
    retry_failed: bool = False

    def __post_init__(self) -> None:
        for option, folder in (("--out", self.out), ("--memories", self.memories_folder)):
            if folder.exists() and not folder.is_dir():
                raise InputError(f"{folder} is a file; {option} names a folder")
        for name in self.systems:
            if name not in BUILT_IN and ":" not in name:
                raise InputError(
                    f"unknown system {name!r}; known: {', '.join(BUILT_IN)}, or MODULE:OBJECT for your own"
                )
        if self.budget is not None and isnan(self.budget):
            raise InputError("--budget is an amount of US dollars, not nan")
        if self.reading not in ("con", "direct"):
            raise InputError(f"--reading is con or direct, not {self.reading!r}")
        if "semantic" in self.systems and self.embedder is None:
            raise InputError(
                "the system 'semantic' needs --embedder, such as openai/text-embedding-3-small or wordllama"
            )

    @property
    def memories_folder(self) -> Path:
        return self.memories or self.out.parent / "memories"

    def server(self, role: str) -> str | None:
        """Return the address of a role's server, without user name, password and query; None for the provider's own.

        ``role``: also ``embedder``.
        """
        name: str | None = getattr(self, role)
        provider, slash, _ = (name or "").partition("/")
        url = self.urls.get(role) or (server_url(provider) if provider in PROVIDERS else None)
        if not slash or url is None:
            return None
        return without_secrets(url).rstrip("/")

    def bound(self) -> dict[str, Json]:
        """Return the settings that must not change between the processes of one run."""
        same_size = "as om's diary" if "om" in self.systems else DEFAULT_SUMMARY_TOKENS
        return {
            "dataset": self.dataset,
            "observer": self.observer,
            "observer_url": self.server("observer"),
            "reader": self.reader,
            "reader_url": self.server("reader"),
            "judge": self.judge,
            "judge_url": self.server("judge"),
            "reading": self.reading,
            "message_tokens": self.message_tokens,
            "observation_tokens": self.observation_tokens,
            "summary_tokens": self.summary_tokens or same_size,
            "last_messages": self.last_messages,
            "top_k": self.top_k,
            "embedder": self.embedder,
            "embedder_url": self.server("embedder"),
            "context_tokens": self.context_tokens,
            "observer_tokens": self.observer_tokens,
            "reader_tokens": self.reader_tokens,
            "judge_tokens": self.judge_tokens,
            "memory_per_run": self.memory_per_run,
        }


def read_run(folder: Path) -> Record:
    """Return the content of a run's ``run.json``. Raises InputError."""
    path = folder / "run.json"
    run = read_record(path)
    settings = run.get("settings")
    if not isinstance(settings, dict) or cast(Record, settings).get("dataset") not in DATASETS:
        raise InputError(f"{path} is damaged: it names none of the data sets {', '.join(DATASETS)}")
    for name, kind in {"id": str, "systems": list, "runs": int, "title": str, "metric": str}.items():
        if not isinstance(run.get(name), kind):
            raise InputError(f"{path} is damaged: the field {name!r} is missing or has a wrong type")
    return run
