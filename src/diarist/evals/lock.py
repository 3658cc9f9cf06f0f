"""A lock on a run's folder, so that two processes do not pay for the same work."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from diarist.exceptions import InputError

if sys.platform == "win32":
    import msvcrt

    def _lock(file: int) -> None:
        os.lseek(file, 1_000, os.SEEK_SET)  # beyond the text: Windows forbids others to read what is locked
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def locked(folder: Path) -> Generator[None]:
    """Hold the folder's file ``lock`` during the block. The operating system frees it when a process is killed.

    Raises InputError if another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "lock"
    with path.open("ab") as file:
        try:
            _lock(file.fileno())
        except OSError as error:
            holder = path.read_text() or "(unknown)"
            raise InputError(
                f"{folder} is in use by process {holder}; wait for its end, or use another --out"
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()).encode())
        file.flush()
        yield
