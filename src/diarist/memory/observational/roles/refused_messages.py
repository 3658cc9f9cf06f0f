"""Messages that the Observer refuses each time: which errors count, and the note that replaces them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Sequence
from dataclasses import replace

from pydantic_core import ValidationError

from diarist.chunks import Usage
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
        return not isinstance(error, json.JSONDecodeError | UnicodeError | ValidationError)
    if isinstance(error, BadRequestError):
        return error.status != _NOT_FOUND
    return isinstance(error, ContentFilterError)


async def or_note_refusal(
    asked: Awaitable[Observed], observer: ObserverRole, rows: Sequence[Message], timezone: str
) -> Observed:
    """Return the result of ``asked``, or a note that these rows could not be noted if the Observer refuses them.

    An Observer that refuses everything is broken or misconfigured. So a refusal counts only if the Observer accepts
    a harmless message.
    """
    try:
        return await asked
    except Exception as error:
        if not is_refusal(error):
            raise
        control = await observer.observe([_harmless(rows)], earlier=())
        if not control.calls:  # a hook withheld it, so no model was called
            raise
    return replace(_refusal_note(rows, timezone), usage=control.usage, calls=control.calls)


def _harmless(rows: Sequence[Message]) -> Message:
    """Return a message that any Observer can note, to check that it answers at all."""
    said = [TextPart(text="I am going to Rome next Tuesday, and I take the train at nine.")]
    return replace(rows[0], id=f"{rows[0].id}-harmless", role="user", parts=said, part_tokens=None, sent=None)


def _refusal_note(rows: Sequence[Message], timezone: str) -> Observed:
    """Return a note with the number of messages, under the day of the last one; made without a model."""
    many = len(rows) != 1
    what = f"{len(rows)} message{'s' if many else ''} could not be noted"
    why = f"the Observer refused {'them' if many else 'it'} each time"
    text = f"{date_heading(local_time(rows[-1], load_zone(timezone)))}\n- 🟢 {what}: {why}"
    return Observed(
        text=text,
        current_task=None,
        suggested_response=None,
        usage=Usage(),
        model="",
        calls=0,
        warnings=(f"{what}, since {why}; the diary continues without them",),
        shortfall=what,
    )
