"""OpenTelemetry spans; nearly free without a configured SDK."""

from __future__ import annotations

import traceback
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, cast

from diarist.exceptions import ProcessorAbort, message_of

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.util.types import AttributeValue


class Carrier(Exception):
    """Wraps an exception, to pass it to a handler with more data; spans record the wrapped exception."""

    def __init__(self, error: Exception) -> None:
        super().__init__(message_of(error))
        self.error = error


class Span:
    """The handle that ``span`` yields.

    Attributes:
        recording: False if the span is not recorded; then skip costly work for attributes.
    """

    __slots__ = ("_span", "recording")

    def __init__(self, span: trace.Span | None = None) -> None:
        self._span = span
        self.recording = span is not None and span.is_recording()

    def set(self, **attributes: Any) -> None:
        """Set attributes. Leaves out None, and converts values of types that OpenTelemetry does not know to text."""
        if self._span is not None and self.recording:
            self._span.set_attributes(_values(attributes))

    def fail(self, error: BaseException, *, kind: str | None = None) -> None:
        """Record an error that does not leave the block, and mark the span as failed. ``kind`` is the ``error.type``;
        default: the name of the error's class."""
        if self._span is not None and self.recording:
            _fail(self._span, error, kind)


_SILENT = nullcontext(Span())


def span(name: str, **attributes: Any) -> AbstractContextManager[Span]:
    """Open a span around the block, as a child of the current span.

    Name it and its attributes by OpenTelemetry's semantic conventions for GenAI; names with dots go
    through ``**``::

        with span(f"chat {model}", **{"gen_ai.request.model": model}) as current:
            ...
            current.set(**{"gen_ai.usage.input_tokens": usage.input_tokens})

    An exception that leaves the block is recorded, marks the span as failed and is raised again.
    ``ProcessorAbort`` and cancellation are not failures. Do not keep a span open across the ``yield``
    of an async generator: its reader may run in another context.
    """
    tracer = _tracer()
    return _SILENT if tracer is None else _around(tracer, name, attributes)


def client_span(name: str, **attributes: Any) -> AbstractContextManager[Span]:
    """Open a span of kind CLIENT: the block calls a service."""
    tracer = _tracer()
    return _SILENT if tracer is None else _around(tracer, name, attributes, calls_out=True)


@contextmanager
def _around(
    tracer: trace.Tracer, name: str, attributes: Mapping[str, Any], *, calls_out: bool = False
) -> Generator[Span]:
    from opentelemetry.trace import SpanKind

    with tracer.start_as_current_span(
        name,
        kind=SpanKind.CLIENT if calls_out else SpanKind.INTERNAL,
        attributes=_values(attributes),
        record_exception=False,
        set_status_on_exception=False,
    ) as current:
        try:
            yield Span(current)
        except ProcessorAbort:
            raise
        except Exception as error:
            _fail(current, error)
            raise


def listening() -> bool:
    """Return True if an SDK is configured; otherwise skip work that only spans need."""
    return _tracer() is not None


def record(name: str, began: int, *, error: Exception | None = None, **attributes: Any) -> None:
    """Record a span that ends now, as a child of the current span; ``began`` is in nanoseconds since 1970."""
    if (tracer := _tracer()) is None:
        return
    ended = tracer.start_span(name, start_time=began, attributes=_values(attributes))
    if error is not None:
        _fail(ended, error)
    ended.end()


def _tracer() -> trace.Tracer | None:
    """Return the tracer, or None while no SDK is configured (it may be configured later)."""
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer("diarist")


def _fail(current: trace.Span, error: BaseException, kind: str | None = None) -> None:
    from opentelemetry.trace import StatusCode

    error = error.error if isinstance(error, Carrier) else error
    cls, message = type(error), message_of(error)
    name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    current.add_event(  # not ``record_exception``, which fails if ``str(error)`` fails
        "exception",
        {
            "exception.type": name,
            "exception.message": message,
            "exception.stacktrace": "".join(traceback.format_exception(error)),
            "exception.escaped": "False",
        },
    )
    current.set_status(StatusCode.ERROR, message)
    current.set_attribute("error.type", kind or cls.__qualname__)


def _values(attributes: Mapping[str, Any]) -> dict[str, AttributeValue]:
    values: dict[str, AttributeValue] = {}
    for name, value in attributes.items():
        match value:
            case None:
                pass
            case str() | bool() | int() | float():
                values[name] = value
            case Sequence():
                values[name] = [str(item) for item in cast("Sequence[object]", value)]
            case _:
                values[name] = str(value)
    return values
