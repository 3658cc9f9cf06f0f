"""What went wrong, in words that cannot go wrong themselves."""

from __future__ import annotations

from diarist.chunks import ErrorChunk, ErrorPayload, TripwireChunk, TripwirePayload
from diarist.exceptions import TripWire, message_of


def text_of(error: BaseException) -> str:
    """Its class, and what it says."""
    return f"{type(error).__name__}: {message_of(error)}".removesuffix(": ")


def error_chunk(error: Exception) -> ErrorChunk:
    """The last chunk of a run that failed."""
    return ErrorChunk(payload=ErrorPayload(error=message_of(error), kind=type(error).__name__))


def tripwire_chunk(wire: TripWire) -> TripwireChunk:
    """The last chunk of a run that was blocked."""
    payload = TripwirePayload(
        reason=wire.reason, processor_id=wire.processor_id, retry=wire.retry, metadata=wire.metadata
    )
    return TripwireChunk(payload=payload)
