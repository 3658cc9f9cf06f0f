"""The data sets, by the names of their commands: readers of their formats, prompts, and metrics."""

from __future__ import annotations

from diarist.evals.datasets.base import Dataset
from diarist.evals.datasets.beam import BEAM
from diarist.evals.datasets.halumem import HaluMem
from diarist.evals.datasets.locomo import LoCoMo
from diarist.evals.datasets.longmemeval import LongMemEval
from diarist.evals.datasets.personamem import PersonaMem

DATASETS: dict[str, type[Dataset]] = {kind.name: kind for kind in (LongMemEval, LoCoMo, BEAM, HaluMem, PersonaMem)}
