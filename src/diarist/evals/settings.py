"""The options of an evaluation, and which of them a run's folder is bound to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from diarist.exceptions import InputError
from diarist.messages import Json

BUILT_IN = ("om", "om-recall", "summary", "semantic", "last", "full")
"""Names of the systems that diarist compares."""

_BOUND = (
    *("dataset", "observer", "reader", "judge", "reading", "message_tokens", "observation_tokens", "summary_tokens"),
    *("last_messages", "top_k", "embedder", "context_tokens", "observer_tokens", "reader_tokens", "judge_tokens"),
)


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
    summary_tokens: int = 4_000
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
    memories: Path | None = None
    retry_failed: bool = False

    def __post_init__(self) -> None:
        for name in self.systems:
            if name not in BUILT_IN and ":" not in name:
                raise InputError(
                    f"unknown system {name!r}; known: {', '.join(BUILT_IN)}, or MODULE:OBJECT for your own"
                )
        if self.reading not in ("con", "direct"):
            raise InputError(f"--reading is con or direct, not {self.reading!r}")
        if "semantic" in self.systems and self.embedder is None:
            raise InputError(
                "the system 'semantic' needs --embedder, such as openai/text-embedding-3-small or wordllama"
            )

    @property
    def memories_folder(self) -> Path:
        return self.memories or self.out.parent / "memories"

    def bound(self) -> dict[str, Json]:
        """Return the settings that must not change between the processes of one run."""
        return {name: getattr(self, name) for name in _BOUND}
