"""Code in fresh processes, of this checkout and of another one in turns, so that a ratio comes from one run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent.parent


@dataclass(frozen=True)
class Spent:
    """What a process took: seconds on the clock, seconds of CPU, and what it printed."""

    clock: float
    cpu: float
    said: str


@dataclass(frozen=True)
class Checkout:
    """A checkout with its own ``.venv``, or with the packages of this one. Compiled files are kept in ``compiled``."""

    root: Path
    compiled: Path

    def run(self, code: str, **environment: str) -> Spent:
        python = self.root / ".venv" / "bin" / "python"
        more = {"PYTHONPATH": str(self.root / "src"), "PYTHONPYCACHEPREFIX": str(self.compiled), **environment}
        own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        command = [str(python) if python.exists() else sys.executable, "-c", code]
        used, began = cpu_of_children(), time.perf_counter()
        said = subprocess.run(command, check=True, env={**own, **more}, stdout=subprocess.PIPE, text=True).stdout
        return Spent(time.perf_counter() - began, cpu_of_children() - used, said)


def cpu_of_children() -> float:
    """Seconds of CPU that finished processes took."""
    if sys.platform == "win32":
        return 0.0
    import resource

    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


@contextmanager
def checkouts(against: str | None) -> Iterator[Mapping[str, Checkout]]:
    """This checkout as ``here``, and the other one, if given, as ``there``."""
    with tempfile.TemporaryDirectory() as folder:
        roots = {"here": HERE} if against is None else {"here": HERE, "there": Path(against).resolve()}
        yield {name: Checkout(root, Path(folder, name)) for name, root in roots.items()}
