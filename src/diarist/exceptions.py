"""Every error that diarist raises on purpose.

The tree is cut by who can act::

    DiaristError
    ├── ConfigError                 the code that builds an agent, a memory or a storage
    ├── InputError                  the caller of one method: a bad argument, a bad file
    ├── StorageError                whoever runs the database
    │   ├── NotFoundError           a thread or message that is not there
    │   ├── ConflictError           somebody else saved first; read again and retry
    │   ├── ThreadBusyError         another run of this thread did not end in time
    │   ├── RunLostError            this run was taken over or ended elsewhere; nothing more may be written
    │   └── SchemaError             the database was written by a newer diarist
    ├── ModelError                  the provider, or the account with it
    │   ├── ModelAPIError           the provider answered with an error
    │   │   ├── BadRequestError
    │   │   │   └── ContextOverflowError
    │   │   ├── AuthenticationError
    │   │   ├── RateLimitError
    │   │   ├── ContentFilterError
    │   │   └── ModelTimeoutError
    │   ├── ModelConnectionError    no answer, or a connection cut inside one
    │   └── ModelResponseError      an answer that cannot be read
    ├── ToolError                   raised by a tool to tell the model what went wrong
    ├── ProcessorError              a processor failed
    │   └── ProcessorResultError    a processor returned something its hook does not allow
    ├── OutputError                 the final answer does not fit ``output_type``
    └── BlockedError                ``result.raise_for_tripwire()``: a processor blocked the run

    TripWire                        not an error: what ``args.abort()`` raises inside a processor
"""

from __future__ import annotations

from typing import Any


class DiaristError(Exception):
    """Base of all errors of this library."""


class ConfigError(DiaristError):
    """A contradiction or an impossible value in the configuration."""


class InputError(DiaristError):
    """A call was given something it cannot work with; the message names it and the remedy."""


class StorageError(DiaristError):
    """The storage failed; the driver's own error is the cause."""


class NotFoundError(StorageError):
    """The named thread, message or log does not exist."""


class ConflictError(StorageError):
    """A compare-and-set lost: somebody else saved a newer version first."""


class ThreadBusyError(StorageError):
    """Another run of this thread is live and did not end within ``thread_wait``."""


class RunLostError(StorageError):
    """The run is no longer live, or its fencing token is stale: it may write nothing more."""


class SchemaError(StorageError):
    """The database's schema is newer than this version of diarist."""


class ModelError(DiaristError):
    """A model call failed.

    Attributes:
        provider: The provider's name, such as ``"openai"``; empty when unknown.
    """

    def __init__(self, message: str, *, provider: str = "") -> None:
        super().__init__(message)
        self.provider = provider


class ModelAPIError(ModelError):
    """The provider answered with an error.

    Attributes:
        status: HTTP status; None for an error inside an open stream.
        body: The provider's error body as text, cut to 4,000 characters.
        retry_after: Seconds the provider asks to wait; None when it does not say.
    """

    def __init__(
        self,
        message: str,
        *,
        provider: str = "",
        status: int | None = None,
        body: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, provider=provider)
        self.status = status
        self.body = body[:4000]
        self.retry_after = retry_after


class BadRequestError(ModelAPIError):
    """The request was refused as malformed (HTTP 400, 404, 413, 422)."""


class ContextOverflowError(BadRequestError):
    """The prompt is longer than the model's context window."""


class AuthenticationError(ModelAPIError):
    """The key is missing, wrong, or not allowed to use this model (HTTP 401, 403), or its account has no credit
    left (HTTP 402, or a 429 that says so): waiting will not help."""


class RateLimitError(ModelAPIError):
    """Too many requests or tokens (HTTP 429)."""


class ContentFilterError(ModelAPIError):
    """The provider's own content filter refused the request or cut the answer."""


class ModelTimeoutError(ModelAPIError):
    """The provider did not answer in time (HTTP 408, 504, or our own limit)."""


class ModelConnectionError(ModelError):
    """No connection, or one that was cut inside an answer."""


class ModelResponseError(ModelError):
    """The provider's answer cannot be read."""


class ToolError(DiaristError):
    """Raise it in a tool to show the model a plain message instead of a traceback's text."""


class ProcessorError(DiaristError):
    """A processor raised.

    Attributes:
        processor_id: Which processor.
        hook: In which hook.
        step: At which step (0-based); None outside the steps.
    """

    def __init__(self, message: str, *, processor_id: str, hook: str, step: int | None = None) -> None:
        super().__init__(message)
        self.processor_id = processor_id
        self.hook = hook
        self.step = step


class ProcessorResultError(ProcessorError):
    """A processor returned something that its hook does not allow."""


class OutputError(DiaristError):
    """The final answer does not fit ``output_type``, also after the allowed retries.

    Attributes:
        text: The text that did not fit.
    """

    def __init__(self, message: str, *, text: str) -> None:
        super().__init__(message)
        self.text = text


class BlockedError(DiaristError):
    """A processor blocked the run and the caller asked for an exception.

    Attributes:
        reason: What the processor said.
        processor_id: Which processor it was.
        metadata: What it added.
    """

    def __init__(self, reason: str, *, processor_id: str, metadata: Any = None) -> None:
        super().__init__(f"blocked by processor {processor_id!r}: {reason}")
        self.reason = reason
        self.processor_id = processor_id
        self.metadata = metadata


class TripWire(Exception):
    """What ``args.abort()`` raises: the one exception that blocks a run.

    Attributes:
        reason: Why.
        retry: True asks for another attempt of the same step with ``reason`` as feedback.
        metadata: Anything for the caller; ends in ``result.tripwire.metadata``.
        processor_id: The processor that aborted.
        hook: The hook it aborted in; filled in by the pipeline.
    """

    def __init__(
        self, reason: str = "", *, retry: bool = False, metadata: Any = None, processor_id: str = "", hook: str = ""
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry = retry
        self.metadata = metadata
        self.processor_id = processor_id
        self.hook = hook


def message_of(error: BaseException) -> str:
    """What an exception says of itself; nothing where it cannot even do that."""
    try:
        return str(error)
    except Exception:  # it is somebody else's __str__
        return ""
