"""The errors that diarist raises.

The tree is divided by who can solve the problem::

    DiaristError
    ├── ConfigError                 the code that builds an agent, a memory or a storage
    ├── InputError                  the caller of one method: a bad argument, a bad file
    ├── StorageError                the operator of the database
    │   ├── NotFoundError           a thread or message that does not exist
    │   ├── ConflictError           another process saved first; read again and retry
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
    │   ├── ModelConnectionError    no connection, or it was cut in the middle of an answer
    │   └── ModelResponseError      an answer that cannot be read
    ├── RoleError                   the Observer or the Reflector gave nothing usable, or a hook of memory failed
    ├── ToolError                   raised by a tool to tell the model what went wrong
    ├── ProcessorError              a processor failed
    │   └── ProcessorResultError    a processor returned something its hook does not allow
    ├── OutputError                 the final answer does not fit ``output_type``
    └── BlockedError                raised by ``result.raise_for_tripwire()`` if a processor blocked the run

    ProcessorAbort                  not an error: raised by ``args.abort()`` inside a processor
"""

from __future__ import annotations

from typing import Any


class DiaristError(Exception):
    """Base of all errors of this library."""

    def __reduce__(self) -> Any:
        # Without __init__: some errors require arguments that are not in `args`, so they could not leave a process.
        return type(self).__new__, (type(self), *self.args), self.__dict__


class ConfigError(DiaristError):
    """A contradiction or an impossible value in the configuration."""


class InputError(DiaristError):
    """An invalid argument; the message names it and the remedy."""


class StorageError(DiaristError):
    """The storage failed; the driver's own error is the cause."""


class NotFoundError(StorageError):
    """The named thread, message or log does not exist."""


class ConflictError(StorageError):
    """A newer version was saved by another process first."""


class ThreadBusyError(StorageError):
    """Another run of this thread is live and did not end within ``thread_wait``."""


class RunLostError(StorageError):
    """The run is no longer live, or its fencing token is stale, so it may not write any more."""


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
        retry_after: Seconds that the provider asks to wait; None if it does not say.
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
    """The provider refused the request as malformed (HTTP 400, 404, 413, 422)."""


class ContextOverflowError(BadRequestError):
    """The prompt is longer than the model's context window."""


class AuthenticationError(ModelAPIError):
    """The key is missing, wrong, or not allowed to use this model (HTTP 401, 403), or its account has no credit
    left (HTTP 402, or a 429 that says so). A retry cannot succeed."""


class RateLimitError(ModelAPIError):
    """Too many requests or tokens (HTTP 429)."""


class ContentFilterError(ModelAPIError):
    """The provider's own content filter refused the request or cut the answer."""


class ModelTimeoutError(ModelAPIError):
    """The provider did not answer in time (HTTP 408, 504, or our own limit)."""


class ModelConnectionError(ModelError):
    """There is no connection, or the connection was cut inside an answer."""


class ModelResponseError(ModelError):
    """The provider's answer cannot be read."""


class RoleError(DiaristError):
    """The Observer or the Reflector returned nothing usable (an empty answer, or only repetitions), or a hook
    failed."""


class ToolError(DiaristError):
    """Raised by a tool to show the model a plain message."""


class ProcessorError(DiaristError):
    """A processor raised.

    Attributes:
        processor_id: Id of the processor.
        hook: Name of the hook.
        step: Number of the step, from 0; None outside the steps.
    """

    def __init__(self, message: str, *, processor_id: str, hook: str, step: int | None = None) -> None:
        super().__init__(message)
        self.processor_id = processor_id
        self.hook = hook
        self.step = step


class ProcessorResultError(ProcessorError):
    """A processor returned a value that its hook does not allow."""


class OutputError(DiaristError):
    """The final answer does not match ``output_type``, even after the allowed retries.

    Attributes:
        text: The answer's text.
    """

    def __init__(self, message: str, *, text: str) -> None:
        super().__init__(message)
        self.text = text


class BlockedError(DiaristError):
    """A processor blocked the run and the caller asked for an exception.

    Attributes:
        reason: The processor's reason.
        processor_id: Id of the processor.
        metadata: Metadata of the abort.
    """

    def __init__(self, reason: str, *, processor_id: str, metadata: Any = None) -> None:
        super().__init__(f"blocked by processor {processor_id!r}: {reason}")
        self.reason = reason
        self.processor_id = processor_id
        self.metadata = metadata


class ProcessorAbort(Exception):
    """Raised by ``args.abort()`` to block the run, or to ask for another attempt.

    Attributes:
        reason: The reason for the abort.
        retry: True asks for another attempt at the same step, with ``reason`` as feedback.
        metadata: Any value for the caller; it becomes ``result.tripwire.metadata``.
        processor_id: The processor that aborted.
        hook: The hook that aborted; set by the pipeline.
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
    """Return an exception's message; empty if its ``__str__`` fails."""
    try:
        return str(error)
    except Exception:
        return ""


def described(error: BaseException) -> str:
    """Return an exception's class and message."""
    return f"{type(error).__name__}: {message_of(error)}".removesuffix(": ")
