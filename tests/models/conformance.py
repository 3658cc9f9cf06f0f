"""What every client of a provider has to do, whatever protocol it speaks and whatever library it uses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from email.utils import format_datetime
from typing import Any, cast

import anyio
import pytest

from diarist.chunks import (
    Chunk,
    ModelFinish,
    ReasoningDelta,
    ReasoningEnd,
    TextDelta,
    ToolCallChunk,
    ToolInputDelta,
    Usage,
)
from diarist.exceptions import (
    AuthenticationError,
    BadRequestError,
    ContentFilterError,
    ContextOverflowError,
    ModelAPIError,
    ModelConnectionError,
    ModelError,
    ModelTimeoutError,
    RateLimitError,
)
from diarist.messages import (
    FilePart,
    Prompt,
    PromptMessage,
    PromptPart,
    ReasoningPart,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    utc_now,
)
from diarist.models import Model, ModelRequest, ModelSettings, OutputSchema
from diarist.tools import ToolDefinition
from tests.loopback.server import Answer, Call, Hang, HttpError, Tokens
from tests.models.wires import PNG, PNG_URL, Sent, Wire

WEATHER = ToolDefinition(
    name="get_weather",
    description="Current weather in a city.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
)
SCHEMA = {
    "type": "object",
    "properties": {"degrees": {"type": "integer"}},
    "required": ["degrees"],
    "additionalProperties": False,
}


def message(role: Role, *parts: PromptPart | str, cache: bool = False) -> PromptMessage:
    made = [TextPart(text=part) if isinstance(part, str) else part for part in parts]
    return PromptMessage(role=role, parts=made, cache=cache)


def ask(*messages: PromptMessage, **more: Any) -> ModelRequest:
    """A request; without messages, the user says hello."""
    return ModelRequest(prompt=Prompt(messages=list(messages or [message("user", "Hello")])), **more)


async def read(model: Model, request: ModelRequest | None = None) -> list[Chunk]:
    return [chunk async for chunk in model.stream(request or ask())]


def text(chunks: list[Chunk]) -> list[str]:
    return [chunk.payload.text for chunk in chunks if isinstance(chunk, TextDelta)]


def calls(chunks: list[Chunk]) -> list[tuple[str, str, Any]]:
    found = [chunk.payload for chunk in chunks if isinstance(chunk, ToolCallChunk)]
    return [(call.tool_call_id, call.tool_name, call.args) for call in found]


def finish(chunks: list[Chunk]) -> ModelFinish:
    last = chunks[-1]
    assert isinstance(last, ModelFinish)
    return last


class ModelConformance:
    """Subclass it with a ``wire`` fixture."""

    @pytest.fixture
    async def model(self, wire: Wire) -> AsyncIterator[Model]:
        model = wire.model()
        yield model
        await model.close()

    # --- answers -----------------------------------------------------------------------------------

    async def test_text_is_streamed_as_it_comes(self, wire: Wire, model: Model) -> None:
        wire.server.will(Answer(text=["Hel", "lo", " there"]))
        chunks = await read(model)
        start, *deltas, end, last = [chunk.type for chunk in chunks]
        assert (start, {*deltas}, end, last) == ("text-start", {"text-delta"}, "text-end", "model-finish")
        assert "".join(text(chunks)) == "Hello there"
        assert len({chunk.payload.id for chunk in cast(list[Any], chunks[:-1])}) == 1
        assert finish(chunks).payload.reason == "stop"

    async def test_usage_counts_cached_and_reasoning_tokens(self, wire: Wire, model: Model) -> None:
        tokens = Tokens(input=1000, output=50, cached=800, reasoning=20)
        wire.server.will(Answer(text=["ok"], tokens=tokens))
        usage = finish(await read(model)).payload.usage
        assert usage == Usage(input_tokens=1000, output_tokens=50, cached_tokens=800, reasoning_tokens=20)

    async def test_the_last_chunk_names_response_and_model(self, wire: Wire, model: Model) -> None:
        payload = finish(await read(model)).payload
        assert payload.response_id
        assert payload.model == model.name

    async def test_a_tool_call_is_put_together_from_its_fragments(self, wire: Wire, model: Model) -> None:
        wire.server.will(Answer(calls=[Call(name="get_weather", args=['{"ci', 'ty": "Ro', 'me"}'], id="c1")]))
        chunks = await read(model, ask(tools=[WEATHER]))
        first, *deltas, whole, _ = chunks
        assert (first.type, whole.type) == ("tool-call-input-streaming-start", "tool-call")
        fragments = [chunk.payload.args_text_delta for chunk in deltas if isinstance(chunk, ToolInputDelta)]
        assert len(fragments) == len(deltas)
        assert json.loads("".join(fragments)) == {"city": "Rome"}
        assert calls(chunks) == [("c1", "get_weather", {"city": "Rome"})]
        assert finish(chunks).payload.reason == "tool-calls"

    async def test_parallel_calls_keep_their_order(self, wire: Wire, model: Model) -> None:
        made = [Call(name="get_weather", args=[f'{{"city": "{city}"}}'], id=city) for city in ("Rome", "Oslo")]
        wire.server.will(Answer(text=["One moment."], calls=made))
        chunks = await read(model, ask(tools=[WEATHER]))
        assert text(chunks) == ["One moment."]
        assert [(id, args) for id, _, args in calls(chunks)] == [("Rome", {"city": "Rome"}), ("Oslo", {"city": "Oslo"})]

    @pytest.mark.parametrize("args", ['{"city": ', '["Rome"]', '"Rome"'])
    async def test_arguments_that_are_no_object_are_told(self, args: str, wire: Wire, model: Model) -> None:
        wire.server.will(Answer(calls=[Call(name="get_weather", args=[args])]))
        (call,) = [c for c in await read(model, ask(tools=[WEATHER])) if isinstance(c, ToolCallChunk)]
        assert call.payload.args == {}
        assert call.payload.args_error
        assert args in call.payload.args_error

    async def test_a_call_without_arguments_has_none(self, wire: Wire, model: Model) -> None:
        wire.server.will(Answer(calls=[Call(name="now", args=["{}"])]))
        assert calls(await read(model))[0][1:] == ("now", {})

    async def test_reasoning_comes_before_the_text_and_goes_back_signed(self, wire: Wire, model: Model) -> None:
        wire.server.will(Answer(reasoning=["Let me ", "think."], signature="sig", text=["Yes."]))
        chunks = await read(model)
        thought = [c.payload.text for c in chunks if isinstance(c, ReasoningDelta)]
        (end,) = [chunk.payload for chunk in chunks if isinstance(chunk, ReasoningEnd)]
        assert "".join(thought).replace("\n", "") == "Let me think."
        assert end.provider == wire.makes
        assert end.signature == ("sig" if wire.signs_reasoning else None)

        part = ReasoningPart(
            text="".join(thought), signature=end.signature, provider=end.provider, provider_data=end.provider_data
        )
        foreign = ReasoningPart(text="psst", signature="other", provider="elsewhere")
        again = ask(
            message("user", "Is it?"), message("assistant", foreign, part, "Yes."), message("user", "Are you sure?")
        )
        await read(model, again)
        body = wire.server.requests[-1].body
        assert wire.reasoning(body) == [("".join(thought), end.signature or "")]
        assert "psst" not in str(body)
        assert "other" not in str(body)

    async def test_a_cut_off_answer_says_so(self, wire: Wire, model: Model) -> None:
        wire.server.will(Answer(text=["Once upon"], finish="length"))
        assert finish(await read(model)).payload.reason == "length"

    async def test_an_answer_with_an_unknown_reason_is_whole(self, wire: Wire, model: Model) -> None:
        wire.server.will(Answer(text=["Well."], finish="odd"))
        chunks = await read(model)
        assert (text(chunks), finish(chunks).payload.reason) == (["Well."], "other")

    async def test_a_filtered_answer_keeps_what_came(self, wire: Wire, model: Model) -> None:
        wire.server.will(Answer(text=["Well, "], finish="filter"))
        chunks = await read(model)
        assert text(chunks) == ["Well, "]
        assert finish(chunks).payload.reason == "content-filter"

    async def test_a_withheld_answer_is_an_error(self, wire: Wire, model: Model) -> None:
        wire.server.will(Answer(finish="filter"))
        with pytest.raises(ContentFilterError):
            await read(model)

    # --- requests ----------------------------------------------------------------------------------

    async def test_leading_system_messages_are_one(self, wire: Wire, model: Model) -> None:
        await read(model, ask(message("system", "Be kind."), message("system", "Be brief."), message("user", "Hi")))
        assert wire.sent() == [Sent(role="system", text="Be kind.\n\nBe brief."), Sent(role="user", text="Hi")]

    async def test_a_tool_result_stands_with_its_call(self, wire: Wire, model: Model) -> None:
        call = ToolCallPart(call_id="c1", name="get_weather", args={"city": "Rome"})
        result = ToolResultPart(call_id="c1", name="get_weather", text="18 degrees")
        request = ask(
            message("user", "Rome?"),
            message("assistant", call),
            message("tool", result),
            message("assistant", "18."),
            message("user", "Thanks"),
            tools=[WEATHER],
        )
        await read(model, request)
        assert wire.sent() == [
            Sent(role="user", text="Rome?"),
            Sent(role="assistant", calls=[("c1", "get_weather", '{"city":"Rome"}')]),
            Sent(role="tool", results=[("c1", "18 degrees")]),
            Sent(role="assistant", text="18."),
            Sent(role="user", text="Thanks"),
        ]

    async def test_images_are_sent_as_data(self, wire: Wire, model: Model) -> None:
        image = FilePart(media_type="image/png", data=PNG)
        same = FilePart(media_type="image/png", url=PNG_URL)
        await read(model, ask(message("user", "What is this?", image, same)))
        assert wire.sent() == [Sent(role="user", text="What is this?", images=[PNG_URL, PNG_URL])]

    async def test_tools_are_sent_with_their_schemas(self, wire: Wire, model: Model) -> None:
        await read(model, ask(tools=[WEATHER]))
        body = wire.server.requests[-1].body
        assert wire.tools(body) == [("get_weather", "Current weather in a city.", WEATHER.parameters)]
        assert wire.schema(body) is None

    async def test_an_output_schema_is_asked_for(self, wire: Wire, model: Model) -> None:
        await read(model, ask(output=OutputSchema(name="weather", schema=SCHEMA)))
        assert wire.schema(wire.server.requests[-1].body) == SCHEMA

    async def test_the_request_is_left_as_it_was(self, wire: Wire, model: Model) -> None:
        def make() -> ModelRequest:
            return ask(message("user", "Hi", cache=True), tools=[WEATHER], output=OutputSchema(name="w", schema=SCHEMA))

        request = make()
        await read(model, request)
        assert request == make()

    # --- errors ------------------------------------------------------------------------------------

    async def failure(
        self, wire: Wire, model: Model, *script: Any, settings: ModelSettings | None = None
    ) -> ModelError:
        wire.server.will(*script)
        with pytest.raises(ModelError) as caught:
            await read(model, ask(settings=settings or ModelSettings()))
        assert len(wire.server.requests) == 1, "the client retried by itself"
        assert caught.value.provider == model.provider
        return caught.value

    async def test_rate_limit(self, wire: Wire, model: Model) -> None:
        error = await self.failure(
            wire, model, HttpError(status=429, message="slow down", headers={"Retry-After": "7"})
        )
        assert isinstance(error, RateLimitError)
        assert (error.status, error.retry_after) == (429, 7.0)
        assert "slow down" in str(error)
        assert "slow down" in error.body

    async def test_retry_after_may_be_a_date(self, wire: Wire, model: Model) -> None:
        past = format_datetime(utc_now().replace(year=2020), usegmt=True)
        error = await self.failure(wire, model, HttpError(status=429, headers={"Retry-After": past}))
        assert isinstance(error, RateLimitError)
        assert error.retry_after == 0.0

    async def test_context_overflow(self, wire: Wire, model: Model) -> None:
        code, said = wire.overflow
        error = await self.failure(wire, model, HttpError(status=400, code=code, message=said))
        assert isinstance(error, ContextOverflowError)
        assert error.status == 400

    @pytest.mark.parametrize(
        ("status", "kind"),
        [
            (400, BadRequestError),
            (401, AuthenticationError),
            (403, AuthenticationError),
            (404, BadRequestError),
            (413, BadRequestError),
            (422, BadRequestError),
            (408, ModelTimeoutError),
            (504, ModelTimeoutError),
            (500, ModelAPIError),
            (503, ModelAPIError),
        ],
    )
    async def test_status(self, status: int, kind: type[ModelAPIError], wire: Wire, model: Model) -> None:
        error = await self.failure(wire, model, HttpError(status=status, code="api_error"))
        assert type(error) is kind
        assert error.status == status
        assert error.retry_after is None

    async def test_content_filter(self, wire: Wire, model: Model) -> None:
        script = HttpError(status=400, code="content_filter", message="content_filter: not this")
        assert isinstance(await self.failure(wire, model, script), ContentFilterError)

    async def test_a_refused_prompt_is_no_matter_of_the_key(self, wire: Wire, model: Model) -> None:
        script = HttpError(status=403, message='m requires moderation. Your input was flagged for "violence".')
        assert isinstance(await self.failure(wire, model, script), ContentFilterError)

    async def test_an_error_inside_the_open_stream(self, wire: Wire, model: Model) -> None:
        error = await self.failure(wire, model, Answer(text=["Hel"], then="error"))
        assert isinstance(error, ModelAPIError)
        assert error.status is None

    @pytest.mark.parametrize("then", ["cut", "eof"])
    async def test_a_stream_that_breaks_off(self, then: Any, wire: Wire, model: Model) -> None:
        error = await self.failure(wire, model, Answer(text=["Hel"], then=then))
        assert isinstance(error, ModelConnectionError)

    async def test_what_came_before_the_break_was_yielded(self, wire: Wire, model: Model) -> None:
        wire.server.will(Answer(text=["Hel", "lo"], then="cut"))
        stream = model.stream(ask())
        got = [await anext(stream), await anext(stream)]
        while "".join(text(got)) != "Hello":
            got.append(await anext(stream))
        with pytest.raises(ModelConnectionError):
            await anext(stream)

    @pytest.mark.parametrize("script", [Hang(), Answer(text=["Hel"], then="hang")])
    async def test_silence_is_a_timeout(self, script: Any, wire: Wire, model: Model) -> None:
        error = await self.failure(wire, model, script, settings=ModelSettings(timeout=0.2))
        assert isinstance(error, ModelTimeoutError)

    async def test_a_server_that_drips_is_a_timeout(self, wire: Wire, model: Model) -> None:
        settings = ModelSettings(timeout=60, total_timeout=0.3)
        error = await self.failure(wire, model, Answer(text=["Hel"], then="drip"), settings=settings)
        assert isinstance(error, ModelTimeoutError)

    async def test_a_server_that_is_down(self, wire: Wire) -> None:
        model = wire.model("http://127.0.0.1:1")
        with pytest.raises(ModelConnectionError):
            await read(model)
        await model.close()

    # --- ending early ------------------------------------------------------------------------------

    async def test_closing_the_iterator_ends_the_call(self, wire: Wire, model: Model) -> None:
        wire.server.will(Answer(text=["Hel"], then="hang"))
        async with aclosing(cast(Any, model.stream(ask()))) as stream:
            async for chunk in stream:
                if isinstance(chunk, TextDelta):
                    break
        await wire.server.client_left()
        assert text(await read(model)) == ["ok"]

    @pytest.mark.parametrize("script", [Hang(), Answer(text=["Hel"], then="hang")])
    async def test_cancelling_ends_the_call(self, script: Any, wire: Wire, model: Model) -> None:
        wire.server.will(script)
        task = asyncio.create_task(read(model))
        await wire.server.came()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await wire.server.client_left()
        assert text(await read(model)) == ["ok"]

    async def test_cancelling_a_scope_ends_the_call(self, wire: Wire, model: Model) -> None:
        wire.server.will(Answer(text=["Hel"], then="hang"))
        async with anyio.create_task_group() as group:
            group.start_soon(read, model)
            await wire.server.came()
            group.cancel_scope.cancel()
        await wire.server.client_left()

    async def test_calls_run_side_by_side(self, wire: Wire, model: Model) -> None:
        answers = await asyncio.gather(*(read(model) for _ in range(5)))
        assert [text(chunks) for chunks in answers] == [["ok"]] * 5

    async def test_a_connection_is_kept_for_the_next_call(self, wire: Wire, model: Model) -> None:
        wire.server.will(Answer(text=["ok"]), HttpError(status=500), Answer(text=["ok"]))
        await read(model)
        with pytest.raises(ModelAPIError):
            await read(model)
        await read(model)
        assert len({request.port for request in wire.server.requests}) == 1

    async def test_a_closed_model_may_be_used_again(self, wire: Wire, model: Model) -> None:
        assert text(await read(model)) == ["ok"]
        await model.close()
        assert text(await read(model)) == ["ok"]

    def test_one_event_loop_after_another(self, wire: Wire) -> None:
        model = wire.model()

        async def once() -> list[str]:
            try:
                return text(await read(model))
            finally:
                await model.close()

        assert [asyncio.run(once()) for _ in range(2)] == [["ok"], ["ok"]]
