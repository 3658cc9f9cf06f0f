"""The systems that diarist compares, by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from diarist.evals.datasets.base import Dataset
from diarist.evals.settings import Settings
from diarist.evals.systems.base import System
from diarist.evals.systems.baselines import FullHistory, LastMessages, SemanticRecall, Summary
from diarist.evals.systems.observational import ObservationalMemory
from diarist.messages import Json
from diarist.models.base import Model


def built_in(
    name: str, settings: Settings, dataset: Dataset, observer: Model | str
) -> tuple[dict[str, Json], Callable[[Path], System]]:
    """Return what a system is made of, by its name in ``BUILT_IN``.

    Returns:
        Everything that its memories and contexts depend on, besides the data; and a function that takes the folder for
        its data and returns the system.
    """
    histories = {history.id: history for history in dataset.histories}
    render, context_tokens = dataset.sessions_text, settings.context_tokens
    diary: dict[str, Json] = {
        "system": "om",
        "observer": settings.observer,
        "message_tokens": settings.message_tokens,
        "observation_tokens": settings.observation_tokens,
        "each_session": dataset.each_session,
        "diarist": version("diarist"),
    }
    if settings.observer_tokens is not None:
        diary["observer_tokens"] = settings.observer_tokens
    match name:
        case "om" | "om-recall":
            return diary, lambda folder: ObservationalMemory(
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
            assert isinstance(observer, Model)
            due, size = 1 if dataset.each_session else settings.message_tokens, settings.summary_tokens
            return {**diary, "system": "summary", "size": size}, lambda folder: Summary(
                folder, observer, histories, render, message_tokens=due, size=size
            )
        case "semantic":
            embedder, top_k = settings.embedder or "", settings.top_k
            return {"system": "semantic", "embedder": embedder, "top_k": top_k}, lambda folder: SemanticRecall(
                folder, embedder, render, top_k=top_k
            )
        case "last":
            count = settings.last_messages
            options = {"system": "last", "last_messages": count, "context_tokens": context_tokens}
            return options, lambda _: LastMessages(histories, render, count=count, context_tokens=context_tokens)
        case _:
            options = {"system": "full", "context_tokens": context_tokens}
            return options, lambda _: FullHistory(histories, render, context_tokens=context_tokens)
