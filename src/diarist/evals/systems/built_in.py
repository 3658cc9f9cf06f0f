"""The systems that diarist compares, by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from diarist.evals.datasets.base import Dataset
from diarist.evals.settings import DEFAULT_SUMMARY_TOKENS, Settings
from diarist.evals.systems.base import System
from diarist.evals.systems.baselines import FullHistory, LastMessages, SemanticRecall, Summary
from diarist.evals.systems.observational import ObservationalMemory
from diarist.exceptions import ConfigError
from diarist.messages import Json
from diarist.models.base import Model

MakeSystem = Callable[[str, Path], System]
"""Takes ``module:object`` and a folder; returns the system."""


def options_of(name: str, settings: Settings, dataset: Dataset) -> dict[str, Json]:
    """Return everything that the memories and contexts of a system depend on, besides the data."""
    diary: dict[str, Json] = {
        "system": "om",
        "observer": settings.observer,
        "server": settings.server("observer"),
        "message_tokens": settings.message_tokens,
        "observation_tokens": settings.observation_tokens,
        "each_session": dataset.each_session,
        "diarist": version("diarist"),
    }
    if settings.observer_tokens is not None:
        diary["observer_tokens"] = settings.observer_tokens
    match name:
        case "om" | "om-recall":
            return diary
        case "summary":
            size: Json = settings.summary_tokens
            if size is None:
                size = diary if "om" in settings.systems else DEFAULT_SUMMARY_TOKENS
            return {**diary, "system": "summary", "size": size}
        case "semantic":
            return {
                "system": "semantic",
                "embedder": settings.embedder,
                "server": settings.server("embedder"),
                "top_k": settings.top_k,
            }
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


def system_of(
    name: str,
    folder: Path,
    settings: Settings,
    dataset: Dataset,
    *,
    observer: Model | str,
    sizes: dict[str, int],
    make_system: MakeSystem,
) -> System:
    """Return a new system.

    Args:
        folder: Where it keeps its data.
        sizes: Tokens of the summaries, by history; those of histories that are missing have their default.
        make_system: Returns a system of the user's own.

    Raises:
        ConfigError: The system needs a model as Observer.
    """
    histories = {history.id: history for history in dataset.histories}
    render = dataset.sessions_text
    match name:
        case "om" | "om-recall":
            return ObservationalMemory(
                folder,
                observer,
                render,
                message_tokens=settings.message_tokens,
                observation_tokens=settings.observation_tokens,
                observer_tokens=settings.observer_tokens,
                each_session=dataset.each_session,
                recall=name == "om-recall",
            )
        case "summary":
            if not isinstance(observer, Model):
                raise ConfigError("the system 'summary' needs a model as --observer")
            fixed = settings.summary_tokens
            return Summary(
                folder,
                observer,
                histories,
                render,
                message_tokens=1 if dataset.each_session else settings.message_tokens,
                size=lambda history: fixed or sizes.get(history) or DEFAULT_SUMMARY_TOKENS,
            )
        case "semantic":
            return SemanticRecall(folder, settings.embedder or "", render, top_k=settings.top_k)
        case "last":
            return LastMessages(histories, render, count=settings.last_messages, context_tokens=settings.context_tokens)
        case "full":
            return FullHistory(histories, render, context_tokens=settings.context_tokens)
        case _:
            return make_system(name, folder)
