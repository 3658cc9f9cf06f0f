"""Files that commands read: a path, or ``-`` for standard input."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from diarist.exceptions import InputError
from diarist.integrations.conversations import Conversation, thread_id_of
from diarist.integrations.conversations.loading import BrokenLine

_COPY = "standard input"


@contextmanager
def opened_input(file: Path) -> Generator[Path]:
    """Yield the path of a file to read.

    For ``-``, a pipe or a device this is a temporary copy, because commands read a file more than once, first to detect
    its format. An InputError raised in the block names the file, and the command's option that helps.
    """
    with TemporaryDirectory(prefix="diarist-") as folder:
        path, name = file, str(file)
        if name == "-" or (file.exists() and not file.is_file() and not file.is_dir()):
            path = Path(folder, _COPY)
            try:
                with (
                    path.open("wb") as target,
                    nullcontext(sys.stdin.buffer) if name == "-" else file.open("rb") as source,
                ):
                    shutil.copyfileobj(source, target)
            except OSError as error:
                raise InputError(f"{file} cannot be read: {error.strerror or error}") from error
            name = _COPY if name == "-" else name
        try:
            yield path
        except BrokenLine as error:
            raise InputError(f"{_named(error, path, name)}; --skip-broken-lines leaves such lines out") from error
        except InputError as error:
            raise InputError(_named(error, path, name)) from error


def _named(error: InputError, path: Path, name: str) -> str:
    text = str(error).replace("without resource=", "without --resource")  # its advice is for Python
    return text.replace(str(path), name)


def thread_of(path: Path, chat: Conversation, thread: str | None) -> str:
    """Return ``thread`` if it is given, otherwise an id for the conversation in ``path``.

    Raises InputError if the conversation comes from standard input or a pipe, and has no id.
    """
    if thread is None and not chat.id and path.name == _COPY:
        raise InputError("add --thread: standard input, or a pipe, has no path from which a thread id can be derived")
    return thread or thread_id_of(path, chat)
