"""What the server and the driver complain about, in words that say what to do."""

from __future__ import annotations

from sqlalchemy import exc as sa

from diarist.postgres_database.address import CONNECT_TIMEOUT
from diarist.postgres_database.patience import NoAnswerError

_REMEDIES = {
    "28P01": "; correct the user or the password in the URL",
    "28000": "; correct the user or the password in the URL, or let the server take them (pg_hba.conf)",
    "3D000": "; create the database, or name another one in the URL",
    "3F000": "; name a schema (schema=) that the user may create tables in",
    "42501": "; grant the user what is missing, or connect as another one",
    "25006": "; connect to the primary server, which takes writes",
    "53100": "; free some space on the server's disk",
    "53300": "; raise max_connections of the server, or lower pool_size here or elsewhere",
    "55P03": "; somebody else has held a lock for {seconds:g} seconds (busy_timeout): end that, or wait longer",
    "57P03": "; wait until the server is up",
}


def cause_of(error: BaseException) -> BaseException:
    """The driver's own error, where SQLAlchemy has wrapped it (twice)."""
    original = getattr(error, "orig", None)
    return error if original is None else original.__cause__ or original


def explained(cause: BaseException, pool_size: int, busy_timeout: float) -> str:
    """What went wrong, with a remedy where one is known."""
    if isinstance(cause, sa.TimeoutError):
        busy = f"all {pool_size} connections have been in use for {busy_timeout:g} seconds"
        return f"{busy}; raise pool_size or busy_timeout, or do less at once"
    if isinstance(cause, NoAnswerError):
        hung = "see whether the server hangs, or the network to it"
        return f"{cause} (busy_timeout and statement_timeout); {hung}, or allow more"
    if type(cause) is TimeoutError:
        return f"no connection within {CONNECT_TIMEOUT} seconds; see whether the server hangs, or correct the URL"
    words = next(iter(str(cause).splitlines()), "") or type(cause).__name__  # without the server's details and hints
    if not sqlstate(cause) and isinstance(cause, OSError):
        return f"{words}; start PostgreSQL there, or correct the URL"
    return words + _REMEDIES.get(sqlstate(cause), "").format(seconds=busy_timeout)


def sqlstate(cause: BaseException) -> str:
    return getattr(cause, "sqlstate", None) or ""


def unfit(cause: BaseException) -> str | None:
    """What is wrong with the values of a statement, if it is they that PostgreSQL cannot take."""
    if isinstance(cause.__cause__, UnicodeEncodeError):
        return f"{cause.__cause__.object!r} is not valid Unicode"
    match sqlstate(cause):
        case "22021":
            return "PostgreSQL keeps no NUL character in a key or title"
        case "54000":
            return "an id or key is too long for an index of PostgreSQL: use at most 1,000 bytes"
        case _:
            return None
