"""What counts as a refusal of messages by the Observer, and what stands in the diary for those it refuses each time."""

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
    """Whether an error is about what was asked, and not about who was asked.

    Only what says so counts: a content filter, a bad request (but no unknown model), an answer without notes, a
    ValueError of an Observer of one's own. An outage, a wrong key, an answer that cannot be read, a hook that fails
    or what nobody knows never does.
    """
    if isinstance(error, RoleError):
        return error.__cause__ is None
    if isinstance(error, ValueError):
        return not isinstance(error, json.JSONDecodeError | UnicodeError | ValidationError)
    if isinstance(error, BadRequestError):
        return error.status != _NOT_FOUND
    return isinstance(error, ContentFilterError)


async def or_written_off(
    asked: Awaitable[Observed], observer: ObserverRole, rows: Sequence[Message], timezone: str
) -> Observed:
    """What was ``asked`` of the Observer, or a line that these rows could not be noted, where it refuses them.

    Who refuses everything is broken, or set up wrongly, and that is no fault of the message: a refusal holds where the
    Observer notes something harmless.
    """
    try:
        return await asked
    except Exception as error:
        if not is_refusal(error):
            raise
        control = await observer.observe([_harmless(rows)], earlier=())
        if not control.calls:  # a hook has withheld it, and nobody was asked
            raise
    return replace(_written_off(rows, timezone), usage=control.usage, calls=control.calls)


def _harmless(rows: Sequence[Message]) -> Message:
    """A message that every Observer can note, in the place of these: does it answer at all?"""
    said = [TextPart(text="I am going to Rome next Tuesday, and I take the train at nine.")]
    return replace(rows[0], id=f"{rows[0].id}-harmless", role="user", parts=said, part_tokens=None, sent=None)


def _written_off(rows: Sequence[Message], timezone: str) -> Observed:
    """A line that says how many they were, under the day of the last; without a model."""
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
        warnings=(f"{what}, since {why}; the diary goes on without",),
    )
