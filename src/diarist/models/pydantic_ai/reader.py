"""Convert the events of a library stream to chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import orjson
from pydantic_ai import messages as lib
from pydantic_ai.models import Model as LibModel
from pydantic_ai.models import StreamedResponse
from pydantic_core import to_jsonable_python

from diarist.chunks import (
    Chunk,
    FileChunk,
    FilePayload,
    FinishReason,
    IdPayload,
    ModelFinish,
    ModelFinishPayload,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningEndPayload,
    ReasoningStart,
    TextDelta,
    TextEnd,
    TextPayload,
    TextStart,
    ToolCallChunk,
    ToolCallPayload,
    ToolInputDelta,
    ToolInputDeltaPayload,
    ToolInputStart,
    ToolInputStartPayload,
    ToolResultChunk,
    ToolResultPayload,
    Usage,
)
from diarist.encoding import parse_arguments
from diarist.exceptions import ContentFilterError, ModelConnectionError
from diarist.messages import Json
from diarist.models.api_errors import api_error
from diarist.models.provider_data import from_part, of_call, of_result

_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content-filter",
    "tool_call": "tool-calls",
}


class ChunkReader:
    """Reads one answer.

    At most one block of text or reasoning is open at a time. A tool call is complete when the next part begins and the
    call's arguments are JSON. Some servers mix the fragments of parallel calls, so if the arguments are not JSON yet,
    the call is held until the end.
    """

    def __init__(self, response: StreamedResponse, *, provider: str) -> None:
        self._response = response
        self._provider = provider
        self._open_parts: list[int] = []
        """Indices of the parts of the open block: one part, or all parts of one reasoning item."""
        self._blocks = 0
        self._call_ids: dict[int, str] = {}
        self._called: set[int] = set()  # indices of the calls that were yielded

    def read(self, event: lib.ModelResponseStreamEvent) -> Iterator[Chunk]:
        match event:
            case lib.PartStartEvent():
                yield from self._start(event.index, event.part)
            case lib.PartDeltaEvent(delta=lib.TextPartDelta(content_delta=text)) if text:
                yield from self._enter(event.index)
                yield TextDelta(payload=TextPayload(text=text, id=self._id))
            case lib.PartDeltaEvent(delta=lib.ThinkingPartDelta(content_delta=text)) if text:
                yield from self._enter(event.index)
                yield ReasoningDelta(payload=TextPayload(text=text, id=self._id))
            case lib.PartDeltaEvent(delta=lib.ToolCallPartDelta(args_delta=args)) if (
                args and event.index in self._call_ids
            ):
                yield _input_delta(self._call_ids[event.index], args)
            case lib.PartEndEvent(part=lib.ToolCallPart() as part):
                yield from self._call(event.index, part, last=False)
            case _:
                pass

    def finish(self, model: LibModel) -> Iterator[Chunk]:
        """Yield the rest after the stream's end: the end of the open block, held calls, and ``ModelFinish``.

        Raises:
            ModelConnectionError: The answer was cut off without an error.
            ModelAPIError: The provider failed in the middle of the answer.
            ContentFilterError: The provider withheld the whole answer.
        """
        provider, response = self._provider, self._response
        details = response.provider_details or {}
        # A proxy that loses its upstream often closes the stream cleanly. A complete answer has the provider's finish
        # reason or, from some chat completion servers, at least the final usage. Test models report neither.
        raw = details.get("finish_reason")
        parts = self._parts()
        if "error" in (response.finish_reason, raw) and (raw in (None, "error") or not parts):
            raise api_error(provider, body=None, in_stream=True, otherwise=f"it ended with {raw or 'error'!r}")
        told = raw is not None  # perhaps one that the library does not know
        complete = told or (response.finish_reason is not None and response.usage.output_tokens > 0)
        if not complete and model.provider is not None and response.state != "suspended":
            raise ModelConnectionError(f"the answer of {provider} broke off before its end", provider=provider)
        yield from self._close()
        for index, part in enumerate(parts):
            if isinstance(part, lib.ToolCallPart | lib.NativeToolCallPart):
                yield from self._call(index, part)
        reason: FinishReason = _FINISH.get(response.finish_reason or ("other" if told else "stop"), "other")
        called = any(isinstance(parts[index], lib.ToolCallPart) for index in self._called)
        if reason == "stop" and called:  # some servers end a turn of tool calls with "stop"
            reason = "tool-calls"
        if reason == "content-filter" and not parts:
            refusal = details.get("refusal") or "content filter"
            raise ContentFilterError(f"{provider} withheld its answer: {refusal}", provider=provider)
        usage = response.usage
        yield ModelFinish(
            payload=ModelFinishPayload(
                reason=reason,
                usage=Usage(
                    input_tokens=usage.input_tokens,
                    output_tokens=usage.output_tokens,
                    cached_tokens=usage.cache_read_tokens,
                    cache_write_tokens=usage.cache_write_tokens,
                    reasoning_tokens=usage.output_reasoning_tokens or usage.details.get("reasoning_tokens", 0),
                ),
                response_id=response.provider_response_id or "",
                model=response.model_name or "",
            )
        )

    @property
    def _id(self) -> str:
        return str(self._blocks)

    def _parts(self) -> list[lib.ModelResponsePart]:
        return list(self._response.get().parts)

    def _start(self, index: int, part: lib.ModelResponsePart) -> Iterator[Chunk]:
        match part:
            case lib.TextPart():
                yield from self._enter(index)
                if part.content:
                    yield TextDelta(payload=TextPayload(text=part.content, id=self._id))
            case lib.ThinkingPart():
                before = self._parts()[self._open_parts[-1]] if self._open_parts and part.id is not None else None
                if isinstance(before, lib.ThinkingPart) and before.id == part.id and not part.signature:
                    # OpenAI sends one item as several summaries with one signature: keep them together.
                    self._open_parts.append(index)
                    text = f"\n\n{part.content}"
                else:
                    yield from self._enter(index)
                    text = part.content
                if text:
                    yield ReasoningDelta(payload=TextPayload(text=text, id=self._id))
            case lib.ToolCallPart():
                yield from self._close()
                payload = ToolInputStartPayload(tool_call_id=part.tool_call_id, tool_name=part.tool_name)
                yield ToolInputStart(payload=payload)
                self._call_ids[index] = part.tool_call_id
                if part.args:
                    yield _input_delta(part.tool_call_id, part.args)
            case lib.FilePart():
                yield from self._close()
                content = part.content
                yield FileChunk(payload=FilePayload(media_type=content.media_type, data=content.data))
            case lib.NativeToolReturnPart():
                yield from self._close()
                args: dict[str, Json] = {}
                for place, call in enumerate(self._parts()):
                    if isinstance(call, lib.NativeToolCallPart) and call.tool_call_id == part.tool_call_id:
                        yield from self._call(place, call)
                        args = _arguments(call.args)[0]
                yield ToolResultChunk(
                    payload=ToolResultPayload(
                        tool_call_id=part.tool_call_id,
                        tool_name=part.tool_name,
                        args=args,
                        result=to_jsonable_python(part.content),
                        provider_executed=True,
                        provider_data=of_result(part),
                    )
                )
            case _:  # a call of a tool that the provider runs is complete when its result arrives
                yield from self._close()

    def _enter(self, index: int) -> Iterator[Chunk]:
        """Open a block for the part ``index``, unless it is open."""
        if index in self._open_parts:
            return
        yield from self._close()
        self._open_parts = [index]
        self._blocks += 1
        payload = IdPayload(id=self._id)
        if isinstance(self._parts()[index], lib.ThinkingPart):
            yield ReasoningStart(payload=payload)
        else:
            yield TextStart(payload=payload)

    def _close(self) -> Iterator[Chunk]:
        if not self._open_parts:
            return
        parts = self._parts()
        first = parts[self._open_parts[0]]
        if isinstance(first, lib.ThinkingPart):
            of_item = [part for i in self._open_parts if isinstance(part := parts[i], lib.ThinkingPart)]
            signature = next((part.signature for part in of_item if part.signature), None)
            yield ReasoningEnd(
                payload=ReasoningEndPayload(
                    id=self._id,
                    signature=signature,
                    provider=first.provider_name or self._response.provider_name,
                    provider_data=from_part(first),
                )
            )
        else:
            yield TextEnd(payload=IdPayload(id=self._id, provider_data=from_part(first)))
        self._open_parts = []

    def _call(
        self, index: int, part: lib.ToolCallPart | lib.NativeToolCallPart, *, last: bool = True
    ) -> Iterator[Chunk]:
        """Yield a call, once. False for ``last``: only if its arguments are complete."""
        args, problem = _arguments(part.args)
        if index in self._called or (not last and (problem or not part.args)):
            return
        self._called.add(index)
        is_native = isinstance(part, lib.NativeToolCallPart)
        yield ToolCallChunk(
            payload=ToolCallPayload(
                tool_call_id=part.tool_call_id,
                tool_name=part.tool_name,
                args=args,
                args_error=None if is_native else problem,
                provider_executed=is_native,
                provider_data=of_call(part) if is_native else from_part(part),
            )
        )


def _input_delta(call_id: str, args: str | Mapping[str, Any]) -> ToolInputDelta:
    text = args if isinstance(args, str) else orjson.dumps(args).decode()
    return ToolInputDelta(payload=ToolInputDeltaPayload(tool_call_id=call_id, args_text_delta=text))


def _arguments(raw: str | Mapping[str, object] | None) -> tuple[dict[str, Json], str | None]:
    """Return the arguments as ``parse_arguments`` does; the library may have parsed them already."""
    if raw is None or isinstance(raw, str):
        return parse_arguments(raw or "")
    return cast(dict[str, Json], raw), None
