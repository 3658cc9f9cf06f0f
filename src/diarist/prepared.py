"""Statements that are made ready once, for SQLite's driver.

SQLAlchemy writes the SQL. To run a statement it also prepares an execution and a result, each time, which takes
several times as long as SQLite needs to find a row. Here the text and the order of the values are kept with the
statement, and the driver is given both. What is not prepared, such as a statement that was made for one call, goes the
usual way, on the same connection and in the same transaction.
"""

from __future__ import annotations

import sqlite3
from collections import namedtuple
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from typing import Any, cast
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Dialect, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.sql.compiler import SQLCompiler

Values = Mapping[str, Any]
_Convert = Callable[[Any], Any]

_LISTS = (list, tuple)
_LONGEST_LIST = 16
"""Values of an ``IN`` up to which each number of them is a text of its own."""


class PreparedEngine:
    """Transactions on connections that stay open, each with its prepared statements.

    Args:
        engine: Makes the connections.
        begin: The statement that begins a transaction.
        hurried: Whether an event loop stands still during the work that its transactions are given.
    """

    def __init__(self, engine: Engine, begin: str, *, hurried: bool = False) -> None:
        self._engine, self._begin, self._hurried = engine, begin, hurried
        self._statements = _statements.setdefault(type(engine.dialect), _Statements(engine.dialect))
        self._idle: list[PreparedConnection] = []
        self._closed = False

    @contextmanager
    def begin(self, statement: str = "") -> Generator[PreparedConnection]:
        """A transaction; an exception inside takes it back. ``statement`` begins this one in place of the usual."""
        with self._connection() as connection:
            driver = connection.driver
            try:
                driver.execute(statement or self._begin)
                yield connection
                driver.execute("COMMIT")
            finally:
                with suppress(sqlite3.ProgrammingError):  # it was closed, as SQLAlchemy does when it is interrupted
                    if driver.in_transaction:
                        driver.execute("ROLLBACK")

    @contextmanager
    def driver(self) -> Generator[sqlite3.Connection]:
        """A connection of the driver's, in no transaction."""
        with self._connection() as connection:
            yield connection.driver

    @contextmanager
    def _connection(self) -> Generator[PreparedConnection]:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = PreparedConnection(self._engine, self._statements, hurried=self._hurried)
        try:
            yield connection
        finally:
            if connection.is_usable():
                self._idle.append(connection)
            else:
                connection.give_up()
            if self._closed:
                self.dispose()

    def dispose(self) -> None:
        """Close the connections that are not in use, and those that are when they no longer are."""
        self._closed = True
        with suppress(IndexError):  # several threads may empty it
            while True:
                self._idle.pop().close()
        self._engine.dispose()


class PreparedConnection(Connection):
    """A connection that runs prepared statements by itself.

    Where its transactions begin and end is not its affair. To SQLAlchemy it is in one that never ends.
    """

    def __init__(self, engine: Engine, statements: _Statements, *, hurried: bool) -> None:
        super().__init__(engine)
        self._statements = statements
        self.hurried = hurried
        self.driver = cast(sqlite3.Connection, self.connection.dbapi_connection)
        self.begin()

    def is_usable(self) -> bool:
        """Whether it is open and in no transaction of the driver's."""
        try:
            return not (self.closed or self.invalidated or self.driver.in_transaction)
        except sqlite3.ProgrammingError:
            return False

    def give_up(self) -> None:
        """Close it, in whatever state it is."""
        with suppress(sqlite3.Error, SQLAlchemyError):
            self.close()
        with suppress(sqlite3.Error):
            self.driver.close()

    def execute(self, statement: Any, parameters: Any = None, *, execution_options: Any = None) -> Any:
        """As in SQLAlchemy. A prepared statement's result is ``Rows``."""
        many = isinstance(cast(object, parameters), list)
        rows: Sequence[Values] = cast("list[Values]", parameters) if many else [parameters or {}]
        prepared = self._statements.get(statement, rows[0]) if rows else None
        if prepared is None:
            return super().execute(statement, parameters, execution_options=execution_options)
        try:
            if many:
                cursor = self.driver.executemany(prepared.sql, map(prepared.placed, rows))
            else:
                cursor = self.driver.execute(prepared.sql, prepared.placed(rows[0]))
        except sqlite3.Error as error:
            raise DBAPIError.instance(prepared.sql, rows, error, sqlite3.Error, dialect=self.dialect) from error
        return Rows(cursor, prepared)

    def scalar(self, statement: Any, parameters: Any = None, *, execution_options: Any = None) -> Any:
        row = self.execute(statement, parameters, execution_options=execution_options).first()
        return None if row is None else row[0]

    def scalars(self, statement: Any, parameters: Any = None, *, execution_options: Any = None) -> Any:
        return (row[0] for row in self.execute(statement, parameters, execution_options=execution_options))


class Rows:
    """What a statement found, with those methods of SQLAlchemy's results that are needed. Rows are named tuples."""

    __slots__ = ("_cursor", "_prepared")

    def __init__(self, cursor: sqlite3.Cursor, prepared: _Prepared) -> None:
        self._cursor, self._prepared = cursor, prepared

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount

    def first(self) -> Any:
        """The first row, or None; the others are given up."""
        found = self._cursor.fetchone()
        row = None if found is None else self._prepared.row_maker(self._cursor)(found)
        self._cursor.close()
        return row

    def one_or_none(self) -> Any:
        """The row, where there can only be one."""
        return self.first()

    def all(self) -> list[Any]:
        return list(map(self._prepared.row_maker(self._cursor), self._cursor.fetchall()))

    def __iter__(self) -> Iterator[Any]:
        return map(self._prepared.row_maker(self._cursor), self._cursor)


class _Statements:
    """Which statements are prepared, each for the names of its values; those of all engines, which are made alike.

    One is prepared when it comes for the second time: those that were made for one call never do.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._known: WeakKeyDictionary[Any, dict[Any, _Prepared | None]] = WeakKeyDictionary()

    def get(self, statement: Any, values: Values) -> _Prepared | None:
        """None: it goes the usual way."""
        forms = self._known.get(statement)
        if forms is None:
            self._known[statement] = {}
            return None
        if (plain := forms.get(tuple(values))) is not None:  # nearly always
            return plain
        if any(type(value) in _LISTS and len(value) > _LONGEST_LIST for value in values.values()):
            return None
        form = tuple([(name, len(value)) if type(value) in _LISTS else name for name, value in values.items()])  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        try:
            return forms[form]
        except KeyError:
            forms[form] = found = self._made(statement, values)
            return found

    def _made(self, statement: Any, values: Values) -> _Prepared | None:
        compiled: SQLCompiler = statement.compile(dialect=self._dialect, column_keys=sorted(values))
        if compiled.insert_prefetch or compiled.update_prefetch:
            return None  # values that SQLAlchemy finds by itself
        return _Prepared(statement, compiled, values, self._dialect)


_statements: dict[type[Dialect], _Statements] = {}


class _Prepared:
    """A statement as the driver takes it, for values of certain names."""

    def __init__(self, statement: Any, compiled: SQLCompiler, values: Values, dialect: Dialect) -> None:
        state = compiled.construct_expanded_state(dict(values))
        places = tuple(state.positiontup or ())
        self.sql = state.statement
        self._lists = [(name, parts) for name, parts in state.parameter_expansion.items() if name in values]
        given = {*values, *(part for _, parts in self._lists for part in parts)}
        types = {name: compiled.binds[name].type for name in places if name in compiled.binds}
        converts: dict[str, Any] = {
            **{name: type.dialect_impl(dialect).bind_processor(dialect) for name, type in types.items()},
            **state.processors,
        }
        converts = {name: convert for name, convert in converts.items() if convert and name in places}
        self._fixed = {
            name: converts[name](state.parameters[name]) if name in converts else state.parameters[name]
            for name in places
            if name not in given
        }
        self._converts = [(name, convert) for name, convert in converts.items() if name in given]
        self._in_order = _getter(places)
        self._results = _results(statement, dialect)
        self._make: _Convert | None = None

    def placed(self, values: Values) -> tuple[Any, ...]:
        """The values in the order of the statement, as the database keeps them."""
        named = {**self._fixed, **values}
        for name, parts in self._lists:
            named.update(zip(parts, values[name], strict=True))
        for name, convert in self._converts:
            named[name] = convert(named[name])
        return self._in_order(named)

    def row_maker(self, cursor: sqlite3.Cursor) -> _Convert:
        """Makes a named tuple of what the driver found."""
        if self._make is None:
            names = [column[0] for column in cursor.description or ()]
            make: _Convert = namedtuple("Row", names, rename=True)._make  # pyright: ignore[reportUntypedNamedTuple]
            self._make = _converting(make, self._results) if self._results else make
        return self._make


def _getter(names: Sequence[str]) -> Callable[[Values], tuple[Any, ...]]:
    if len(names) > 1:
        return cast("Callable[[Values], tuple[Any, ...]]", itemgetter(*names))
    return lambda values: tuple([values[name] for name in names])


def _results(statement: Any, dialect: Dialect) -> list[tuple[int, _Convert]]:
    """By the place of a column, what becomes of its values."""
    columns = getattr(statement, "exported_columns", ())
    found = (column.type.dialect_impl(dialect).result_processor(dialect, None) for column in columns)
    return [(place, convert) for place, convert in enumerate(found) if convert is not None]


def _converting(make: _Convert, results: Sequence[tuple[int, _Convert]]) -> _Convert:
    def row(found: Sequence[Any]) -> Any:
        values = list(found)
        for place, convert in results:
            values[place] = convert(values[place])
        return make(values)

    return row
