"""The data sets: readers of their formats, prompts, and metrics."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from diarist.exceptions import InputError

if TYPE_CHECKING:
    from diarist.evals.datasets.base import Dataset

_CLASSES = {
    "longmemeval": ("diarist.evals.datasets.longmemeval", "LongMemEval"),
    "locomo": ("diarist.evals.datasets.locomo", "LoCoMo"),
    "beam": ("diarist.evals.datasets.beam", "BEAM"),
    "halumem": ("diarist.evals.datasets.halumem", "HaluMem"),
    "personamem": ("diarist.evals.datasets.personamem", "PersonaMem"),
}
DATASETS = tuple(_CLASSES)


def dataset_class(name: str) -> type[Dataset]:
    """Return the class of a data set. Raises InputError if the name is unknown."""
    if name not in _CLASSES:
        raise InputError(f"unknown data set {name!r}; known: {', '.join(_CLASSES)}")
    module, kind = _CLASSES[name]
    found: type[Dataset] = getattr(import_module(module), kind)
    return found


def dataset(name: str, data: Path, *, reading: str = "con", prompts: Path | None = None) -> Dataset:
    """Return the data set of this name, with the file or folder that holds it.

    Args:
        reading: ``con`` or ``direct``; see ``LongMemEval``.
        prompts: A JSON file with prompts that replace those of the data set.

    Raises:
        InputError: The name is unknown, or ``data`` or ``prompts`` cannot be read.
    """
    return dataset_class(name)(data, reading=reading, prompts=prompts)
