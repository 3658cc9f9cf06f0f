"""Files that commands read: a path, or ``-`` for standard input."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from diarist.exceptions import InputError

_COPY = "standard-input"


@contextmanager
def opened_input(file: Path) -> Generator[Path]:
    """Yield the path of a file to read; for ``-``, of a temporary copy of standard input, since detecting the kind of
    file reads it more than once."""
    if str(file) != "-":
        yield file
        return
    with TemporaryDirectory(prefix="diarist-") as folder:
        copy = Path(folder, _COPY)
        with copy.open("wb") as target:
            shutil.copyfileobj(sys.stdin.buffer, target)
        try:
            yield copy
        except InputError as error:
            raise InputError(str(error).replace(str(copy), "standard input")) from error


def check_thread(file: Path, thread: str | None) -> None:
    """Raise InputError for standard input without ``thread``: it has no path from which an id could be derived."""
    if thread is None and file.name == _COPY:
        raise InputError("add --thread: standard input has no path from which a thread id can be derived")
