"""Addresses of libSQL servers."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from diarist.exceptions import ConfigError

_SCHEMES = {"libsql": "https", "https": "https", "http": "http"}
_EXAMPLE = "write libsql://name.example.com, or http://localhost:8080 for a server without TLS"


class Address(NamedTuple):
    """Where a server listens."""

    tls: bool
    host: str
    port: int
    path: str

    @property
    def url(self) -> str:
        """Without a token."""
        scheme, usual = ("https", 443) if self.tls else ("http", 80)
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}{'' if self.port == usual else f':{self.port}'}{self.path}"


def is_remote(place: str) -> bool:
    return "://" in place


def parsed(url: str, auth_token: str | None) -> tuple[Address, str | None]:
    """The address, and the token, which may stand in the URL as ``?authToken=``. Raises ConfigError."""
    try:
        found = urlsplit(url)
        port = found.port
    except ValueError as error:
        raise ConfigError(f"not a URL of a libSQL server; {_EXAMPLE}") from error
    if found.scheme not in _SCHEMES or not found.hostname:
        raise ConfigError(f"not a URL of a libSQL server: it starts with {found.scheme}://; {_EXAMPLE}")
    query = parse_qs(found.query)
    tls = _SCHEMES[found.scheme] == "https" and query.get("tls") != ["0"]
    token = auth_token if auth_token is not None else query.get("authToken", [None])[0]
    return Address(tls, found.hostname, port or (443 if tls else 80), found.path.rstrip("/")), token
