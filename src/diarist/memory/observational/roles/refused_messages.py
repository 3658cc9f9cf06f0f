"""Messages that the Observer refuses each time: tells which errors are refusals, and writes a note in their place."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Sequence
from dataclasses import replace

from diarist.exceptions import BadRequestError, ContentFilterError
from diarist.memory.observational.roles.base import Observed, ObserverRole, RoleError
from diarist.memory.observational.roles.transcript import date_heading, load_zone, local_time
from diarist.messages import Message, TextPart

_NOT_FOUND = 404


def is_refusal(error: BaseException) -> bool:
    """Return whether an error was caused by the messages, not by the model or the connection.

    These count: a content filter, a bad request (except an unknown model), an answer without notes, and a ValueError
    of a custom Observer. Outages, wrong keys, unreadable answers, failing hooks and unknown errors do not.
    """
    if isinstance(error, RoleError):
        return error.__cause__ is None
    if isinstance(error, ValueError):
        from pydantic_core import ValidationError  # slow to load

        return not isinstance(error, json.JSONDecodeError | UnicodeError | ValidationError)
    if isinstance(error, BadRequestError):
        return error.status != _NOT_FOUND
    return isinstance(error, ContentFilterError)


async def or_note_refusal(
    asked: Awaitable[Observed], observer: ObserverRole, rows: Sequence[Message], timezone: str
) -> Observed:
    """Return the result of ``asked``. If the Observer refuses these rows, return a note that says so.

    An Observer that refuses everything is broken or misconfigured. So a refusal counts only if the Observer accepts a
    harmless message; otherwise an error is raised.
    """
    try:
        return await asked
    except Exception as error:
        if not is_refusal(error):
            raise
        # A harmless message that any Observer can note, to check that it answers at all.
        said = [TextPart(text="I am going to Rome next Tuesday, and I take the train at nine.")]
        id = f"{rows[0].id}-harmless"
        harmless = replace(rows[0], id=id, role="user", parts=said, part_tokens=None, sent=None)
        control = await observer.observe([harmless], earlier=())
        if not control.calls:  # a hook withheld it, so no model was called
            raise
    many = len(rows) != 1
    what = f"{len(rows)} message{'s' if many else ''} could not be noted"
    why = f"the Observer refused {'them' if many else 'it'} each time"
    return Observed(
        text=f"{date_heading(local_time(rows[-1], load_zone(timezone)))}\n- 🟢 {what}: {why}",
        usage=control.usage,
        model="",
        calls=control.calls,
        warnings=(f"{what}, since {why}; the diary continues without them",),
        shortfall=what,
    )
