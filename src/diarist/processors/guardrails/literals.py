"""Secrets too short for a passage, as patterns: they are found as they are written."""

from __future__ import annotations

import re
from collections.abc import Sequence

from diarist.exceptions import ConfigError

SHORTEST = 3
"""Characters of the shortest secret, white space not counted: two letters stand in every answer."""

_GAP = r"[\W_]{1,8}"
"""What may stand between the words of a secret."""


def checked_secrets(owner: str, secrets: Sequence[str]) -> tuple[str, ...]:
    """The secrets. Raises ConfigError for one that is too short to be told from ordinary text."""
    for number, secret in enumerate(secrets, 1):
        if len("".join(secret.split())) < SHORTEST:
            raise ConfigError(
                f"{owner}: secrets: number {number} has fewer than {SHORTEST} characters, so that it would be found "
                "in ordinary words; leave it out"
            )
    return tuple(secrets)


def literal(secret: str) -> str:
    """A pattern that finds a secret whatever its case and the gaps between its words.

    One of letters alone counts as a whole word only, in scripts that have capitals: "lion" is not in "million".
    With a digit or a sign in it, as codes, keys and addresses have, it is found inside other text too.
    """
    words = secret.split()
    pattern = _GAP.join(re.escape(word) for word in words)
    if all(char.isalpha() and char.lower() != char.upper() for char in "".join(words)):
        pattern = rf"(?<!\w){pattern}(?!\w)"
    return f"(?i:{pattern})"
