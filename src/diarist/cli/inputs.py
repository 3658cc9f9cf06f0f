"""Files that commands read: a path, or ``-`` for standard input."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from diarist.exceptions import InputError
from diarist.integrations.conversations import Conversation, thread_id_of
from diarist.integrations.conversations.loading import BrokenLine

_COPY = "standard input"


@contextmanager
def opened_input(file: Path) -> Generator[Path]:
    """Yield the path of a file to read.

    For ``-`` this is a temporary copy of standard input, because commands read a file more than once, first to detect
    its format. An InputError raised in the block names the file, and the command's option that helps.
    """
    with TemporaryDirectory(prefix="diarist-") as folder:
        path = file
        if str(file) == "-":
            path = Path(folder, _COPY)
            with path.open("wb") as target:
                shutil.copyfileobj(sys.stdin.buffer, target)
        try:
            yield path
        except BrokenLine as error:
            raise InputError(f"{_named(error, path)}; --skip-broken-lines leaves such lines out") from error
        except InputError as error:
            raise InputError(_named(error, path)) from error


def _named(error: InputError, path: Path) -> str:
    text = str(error).replace("without resource=", "without --resource")  # its advice is for Python
    return text.replace(str(path), "standard input") if path.name == _COPY else text


def thread_of(path: Path, chat: Conversation, thread: str | None) -> str:
    """Return ``thread`` if it is given, otherwise an id for the conversation in ``path``.

    Raises InputError if the conversation comes from standard input and has no id.
    """
    if thread is None and not chat.id and path.name == _COPY:
        raise InputError("add --thread: standard input has no path from which a thread id can be derived")
    return thread or thread_id_of(path, chat)
