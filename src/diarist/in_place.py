"""Short transactions of a database that is a library in this process, in the thread of whoever asks.

To wake another thread and to be woken again takes several times as long as SQLite needs for a few rows, and each change
of the processor's core costs what its caches had. Work that may run in place never waits there: while somebody else
writes, where it turns out to be long, or while the disk is slow, it goes to the threads of the database like any other.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable
from operator import itemgetter
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from diarist.concurrency import being_cancelled
from diarist.prepared import PreparedConnection, PreparedEngine

P = ParamSpec("P")
R = TypeVar("R")

SLOW, RECOVERY, LONGEST_RECOVERY = 0.05, 5.0, 60.0
"""After a transaction that waited for so many seconds the threads do the work for so many seconds; twice as long where
that comes again soon."""
SHORT_ROWS, SHORT_TEXT, SHORT_READ = 100, 20_000, 200_000
"""What a transaction in place is about at most, some milliseconds: rows; characters that become an index of words as
they are written; and such as are only read."""
WRITES_BETWEEN_LOOKS, LOG_SIZE = 32, 4_000_000
"""After so many writes, and after the first one and each in a thread, the size of the log is looked at: so many bytes
are brought into the file. SQLite would do that by itself after a thousand pages,
which are as many bytes."""
FREE, BURST = 0.001, 0.005
"""Seconds of a turn of an event loop after which whoever comes waits for the next; and after which nobody begins any
more who has waited."""

_PIECES_PER_BYTE = 4
"""An index of words has several pieces for each character of a script without spaces, and each such character has two
bytes more than one of ASCII."""
_TRIES, _BETWEEN_TRIES, _WRITES_AFTER_FAILURE = 10, 0.001, 1_000

logger = logging.getLogger("diarist")


class ElsewhereError(Exception):
    """Nothing was done in place, and the threads should do it."""


class LongWorkError(Exception):
    """Raised by work that turns out to be long, where ``is_hurried``; what it did is taken back."""


def is_hurried(connection: Connection) -> bool:
    """Whether an event loop stands still until this transaction has ended."""
    return isinstance(connection, PreparedConnection) and connection.hurried


def require_threads(connection: Connection) -> None:
    """Send work to the threads, if it is not there already."""
    if is_hurried(connection):
        raise LongWorkError


def require_short(connection: Connection, *, rows: int = 0, characters: int = 0, texts: Iterable[str] = ()) -> None:
    """Send work to the threads if it is about more than is short. ``texts`` become an index of words."""
    if is_hurried(connection) and (rows > SHORT_ROWS or characters + sum(map(_weight, texts)) > SHORT_TEXT):
        raise LongWorkError


def _weight(text: str) -> int:
    """Its characters, those that are not ASCII several times: as much work as so many of English."""
    if text.isascii():
        return len(text)
    return len(text) + _PIECES_PER_BYTE * (len(text.encode(errors="replace")) - len(text))


class _Share:
    """What transactions in place may have of each turn of an event loop. Who comes too late for this one, or while
    others wait, has the next; of those who wait the first comes first, also where one turn does not do for all."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._ends = False
        self._came = self._queued = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def spend(self, began: float) -> None:
        """A transaction began then; whatever the loop does from the first of its turn on counts."""
        if self._began is None:
            self._began = began
            self._end_soon()

    async def get(self) -> None:
        if not self._queued and self._used <= FREE:
            return
        self._came, self._queued = self._came + 1, self._queued + 1
        try:
            await self._next_turn(number := self._came)
            while self._used > BURST:
                await self._next_turn(number)
        finally:
            self._queued -= 1

    @property
    def _used(self) -> float:
        return 0.0 if self._began is None else time.monotonic() - self._began

    async def _next_turn(self, number: int) -> None:
        self._waiting.append((number, future := asyncio.get_running_loop().create_future()))
        self._end_soon()
        await future

    def _end_soon(self) -> None:
        if not self._ends:
            self._ends = True
            asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        self._began, self._ends = None, False
        waiting, self._waiting = sorted(self._waiting, key=itemgetter(0)), []
        for _, future in waiting:
            if not future.done():
                future.set_result(None)


class InPlace:
    """Runs short transactions of one database where they are asked for; several threads may.

    Args:
        engine: Its connections must not wait for locks, nor may any write checkpoints by itself: see ``checkpoint``.
            Readers and writers share them: a connection forgets the pages that it has read when another one writes.
        log: The file of what is not in the database's file yet.
    """

    def __init__(self, engine: PreparedEngine, log: Path) -> None:
        self._engine, self._log = engine, log
        self._slow_until, self._recovery = float("-inf"), RECOVERY
        self._writes = WRITES_BETWEEN_LOOKS - 1
        self._shares: WeakKeyDictionary[asyncio.AbstractEventLoop, _Share] = WeakKeyDictionary()

    async def turn(self) -> None:
        """Let the event loop's other tasks, and others who use the database, have their turn; and let nobody begin who
        was cancelled."""
        if being_cancelled():
            await asyncio.sleep(0)
        await self._share().get()

    def _share(self) -> _Share:
        loop = asyncio.get_running_loop()
        if (share := self._shares.get(loop)) is None:
            share = self._shares.setdefault(loop, _Share())
        return share

    def run(self, writes: bool, work: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What the work comes to, committed. Raises ElsewhereError, and what the work raises."""
        began, busy = time.monotonic(), time.thread_time()
        if began < self._slow_until:
            raise ElsewhereError
        try:
            with self._engine.begin("BEGIN IMMEDIATE" if writes else "BEGIN") as connection:
                return work(connection, *args, **kwargs)
        except LongWorkError:
            raise ElsewhereError from None
        except (sqlite3.OperationalError, DBAPIError) as error:
            if _is_busy(error):
                raise ElsewhereError from None
            raise
        finally:
            self._writes += writes
            self._look_at(began, time.thread_time() - busy)

    def _look_at(self, began: float, worked: float) -> None:
        ended = time.monotonic()
        self._share().spend(began)
        if ended - began - worked > SLOW and began >= self._slow_until:  # others may have met the same stall
            soon = began - self._slow_until < LONGEST_RECOVERY
            self._recovery = min(2 * self._recovery, LONGEST_RECOVERY) if soon else RECOVERY
            self._slow_until = ended + self._recovery

    def wrote_elsewhere(self) -> None:
        """Something was written in a thread, perhaps much."""
        self._writes += WRITES_BETWEEN_LOOKS

    def needs_checkpoint(self) -> bool:
        """Whether it is time for ``checkpoint``; says so once."""
        if self._writes < WRITES_BETWEEN_LOOKS:
            return False
        self._writes = 0
        try:
            return self._log.stat().st_size >= LOG_SIZE
        except OSError:  # nothing was written yet
            return False

    def checkpoint(self) -> None:
        """Bring what was written into the file, so that its log begins anew. Blocks: it waits for the disk.

        First while other processes write, which leaves little to do; then what came meanwhile, between two writes of
        theirs: a log that is never done grows for ever. The first write after that waits for the disk once more: that
        is done here, too, by a write of nothing.
        """
        try:
            with self._engine.driver() as connection:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
                for _ in range(_TRIES):
                    (is_busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                    if not is_busy:
                        break
                    time.sleep(_BETWEEN_TRIES)
                else:  # a long reader or writer: later
                    self._writes = -_WRITES_AFTER_FAILURE
                    return
            with self._engine.begin() as connection:
                (version,) = connection.driver.execute("PRAGMA user_version").fetchone()
                connection.driver.execute(f"PRAGMA user_version = {version:d}")
        except (sqlite3.Error, SQLAlchemyError) as error:
            if not _is_busy(error):  # else somebody else writes
                logger.warning("cannot write a checkpoint: %s", error)

    def dispose(self) -> None:
        self._engine.dispose()


def _is_busy(error: Exception) -> bool:
    cause = getattr(error, "orig", None) or error
    return getattr(cause, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
