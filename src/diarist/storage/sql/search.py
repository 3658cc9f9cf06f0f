"""Full-text search in SQL. What is specific to a database is how it finds the newest rows with all terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    FromClause,
    Row,
    Select,
    Text,
    and_,
    bindparam,
    column,
    literal_column,
    or_,
    select,
    table,
)

from diarist.storage.codec import MessageRow, decode_message
from diarist.storage.places import Place, encode_place, hash63
from diarist.storage.records import Hit, Page
from diarist.storage.sql.schema import Terms, messages, search, threads
from diarist.storage.sql.search_index import resource_mark, thread_mark
from diarist.storage.words import make_hit

NEWEST = 500
"""Rows that PostgreSQL reads from the newest on before it asks its index of terms."""

Found = Row[*tuple[Any, ...]]

_position, _tie = bindparam("position", type_=BigInteger), bindparam("tie", type_=BigInteger)
_resource, _thread = bindparam("resource", type_=Text()), bindparam("thread", type_=Text())
_before = or_(search.c.position < _position, and_(search.c.position == _position, search.c.tie < _tie))
_has_terms = search.c.terms.op("@>")(bindparam("wanted", type_=Terms()))
_message = [messages.c[name] for name in MessageRow._fields]


def search_messages(
    connection: Connection, terms: Sequence[str], resource_id: str, thread_id: str | None, limit: int, after: Place
) -> Page[Hit]:
    """The page that begins behind ``after``."""
    marked = [resource_mark(resource_id) if thread_id is None else thread_mark(thread_id), *terms]
    values = {
        "resource": resource_id,
        "thread": thread_id,
        "owner": hash63(resource_id),
        "position": after.position,
        "tie": after.tie,
        "most": limit + 1,
    }
    find = _find_in_sqlite if connection.dialect.name == "sqlite" else _find_in_postgresql
    found = find(connection, marked, values)
    hits: list[Hit] = []
    for _, _, thread, *columns in found[:limit]:
        message = decode_message(MessageRow(*columns), thread_id=thread, resource_id=resource_id)
        hits.append(make_hit(message, terms))
    more = len(found) > limit
    return Page(items=hits, cursor=encode_place(Place(*found[limit - 1][:2])) if more else None)


def _visible(rows: FromClause) -> Select[*tuple[Any, ...]]:
    """Messages of the resource, for rows of the table of terms, which has only those that count."""
    return (
        select(rows.c.position, rows.c.tie, rows.c.thread_id, *_message)
        .where(
            messages.c.thread_id == rows.c.thread_id,
            messages.c.seq == rows.c.seq,
            threads.c.id == rows.c.thread_id,
            threads.c.resource_id == _resource,
        )
        .limit(bindparam("most"))
    )


# --- SQLite: the index yields rows in the order of their positions, so few are read -----------------------------

_index = table("diarist_search_index", column("rowid", BigInteger))
_IN_INDEX = (
    _visible(search)
    .where(
        literal_column("diarist_search_index").op("MATCH")(bindparam("wanted", type_=Text())),
        _index.c.rowid < _position,  # no two rows have one position here
        search.c.position == _index.c.rowid,
    )
    .order_by(_index.c.rowid.desc())
)
_IN_INDEX_OF_THREAD = _IN_INDEX.where(search.c.thread_id == _thread)


def _find_in_sqlite(connection: Connection, terms: Sequence[str], values: dict[str, Any]) -> Sequence[Found]:
    query = _IN_INDEX if values["thread"] is None else _IN_INDEX_OF_THREAD
    return connection.execute(query, {**values, "wanted": " AND ".join(f'"{term}"' for term in terms)}).all()


# --- PostgreSQL: the index of terms knows no order, which is costly for common words; those the newest rows have


def _among_newest(*where: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    newest = (
        select(search)
        .where(search.c.owner == bindparam("owner", type_=BigInteger), _before, *where)
        .order_by(search.c.position.desc(), search.c.tie.desc())
        .limit(NEWEST)
        .subquery()
    )
    wanted = newest.c.terms.op("@>")(bindparam("wanted", type_=Terms()))
    return _visible(newest).where(wanted).order_by(newest.c.position.desc(), newest.c.tie.desc())


def _by_terms(*where: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    # Apart from the rest of the query: else the planner, which knows nothing of rare words, reads all rows in order.
    keys = (search.c.thread_id, search.c.seq, search.c.position, search.c.tie)
    found = (
        select(*keys).where(_has_terms, _before, *where).cte("found").prefix_with("MATERIALIZED", dialect="postgresql")
    )
    return _visible(found).order_by(found.c.position.desc(), found.c.tie.desc())


_AMONG_NEWEST, _AMONG_NEWEST_OF_THREAD = _among_newest(), _among_newest(search.c.thread_id == _thread)
_BY_TERMS, _BY_TERMS_OF_THREAD = _by_terms(), _by_terms(search.c.thread_id == _thread)


def _find_in_postgresql(connection: Connection, terms: Sequence[str], values: dict[str, Any]) -> Sequence[Found]:
    of_thread = values["thread"] is not None
    values = {**values, "wanted": terms}
    if values["most"] <= NEWEST:
        query = _AMONG_NEWEST_OF_THREAD if of_thread else _AMONG_NEWEST
        found = connection.execute(query, values).all()
        if len(found) == values["most"]:
            return found
    return connection.execute(_BY_TERMS_OF_THREAD if of_thread else _BY_TERMS, values).all()
