"""OpenAI's two protocols: chat completions and responses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.loopback.server import Answer, Call, HttpError, LoopbackServer, Recorded, Search, sse

_CHAT_FINISH = {"stop": "stop", "length": "length", "filter": "content_filter", "odd": "bored", "unsaid": None}


class OpenAIServer(LoopbackServer):
    paths = (
        "/v1/chat/completions",
        "/v1/responses",
        "/openai/v1/chat/completions",  # Azure
        "/openai/deployments/{name}/chat/completions",
    )

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def events(self, request: Recorded, answer: Answer) -> Iterator[str]:
        if request.path.endswith("/responses"):
            return _responses_events(request, answer)
        return _chat_events(request, answer)

    def end(self, request: Recorded, answer: Answer) -> Iterator[str]:
        if request.path.endswith("/responses"):
            return _responses_end(request, answer)
        return _chat_end(request, answer)

    def whole(self, request: Recorded, answer: Answer) -> dict[str, Any] | None:
        events = [*self.events(request, answer), *self.end(request, answer)]
        if request.path.endswith("/responses"):
            return json.loads(events[-1].partition("data: ")[2])["response"]
        return _chat_whole(request, answer)

    def error_event(self, request: Recorded) -> str:
        problem = {"message": "The server had an error", "type": "server_error", "code": None}
        if request.path.endswith("/responses"):
            return sse({**problem, "type": "error", "code": "server_error"}, "error")
        return sse({"error": problem})

    def error_body(self, error: HttpError) -> dict[str, Any]:
        fields = {"message": error.message, "type": "invalid_request_error", "code": error.code}
        return {"error": {**fields, "param": None}}


# --- chat completions ------------------------------------------------------------------------------


def _chat_chunk(request: Recorded, delta: dict[str, Any] | None, **more: Any) -> str:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": more.pop("finish", None)}
    return sse(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1_760_000_000,
            "model": request.body["model"],
            "choices": [] if delta is None else [choice],
            **more,
        }
    )


def _chat_events(request: Recorded, answer: Answer) -> Iterator[str]:
    yield _chat_chunk(request, {"role": "assistant", "content": ""})
    for text in answer.reasoning:
        yield _chat_chunk(request, {"reasoning_content": text})
    for text in answer.text:
        yield _chat_chunk(request, {"content": text})
    heads = [_chat_call(i, {"name": c.name, "arguments": ""}, c) for i, c in enumerate(answer.calls)]
    tails = [[_chat_call(i, {"arguments": a}) for a in c.args] for i, c in enumerate(answer.calls)]
    order = (
        [*heads, *(tail[n] for n in range(max(map(len, tails), default=0)) for tail in tails)]
        if answer.mix_calls
        else [part for head, tail in zip(heads, tails, strict=True) for part in (head, *tail)]
    )
    for part in order:
        yield _chat_chunk(request, {"tool_calls": [part]})


def _chat_whole(request: Recorded, answer: Answer) -> dict[str, Any]:
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": "".join(call.args)}}
        for call in answer.calls
    ]
    message = {"role": "assistant", "content": "".join(answer.text) or None, **({"tool_calls": calls} if calls else {})}
    tokens = answer.tokens
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_760_000_000,
        "model": request.body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
        "usage": {
            "prompt_tokens": tokens.input,
            "completion_tokens": tokens.output,
            "total_tokens": tokens.input + tokens.output,
        },
    }


def _chat_call(index: int, function: dict[str, str], call: Call | None = None) -> dict[str, Any]:
    head = {"id": call.id, "type": "function"} if call else {}
    return {"index": index, **head, "function": function}


def _chat_end(request: Recorded, answer: Answer) -> Iterator[str]:
    finish = "tool_calls" if answer.calls else _CHAT_FINISH[answer.finish]
    yield _chat_chunk(request, {}, finish=finish)
    tokens = answer.tokens
    if (request.body.get("stream_options") or {}).get("include_usage"):
        usage = {
            "prompt_tokens": tokens.input,
            "completion_tokens": tokens.output,
            "total_tokens": tokens.input + tokens.output,
            "prompt_tokens_details": {"cached_tokens": tokens.cached},
            "completion_tokens_details": {"reasoning_tokens": tokens.reasoning},
        }
        yield _chat_chunk(request, None, usage=usage)
    yield sse("[DONE]")


# --- responses -------------------------------------------------------------------------------------


def _event(kind: str, **fields: Any) -> str:
    return sse({"type": kind, "sequence_number": 0, **fields}, kind)


def _response(request: Recorded, status: str, **more: Any) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_760_000_000,
        "status": status,
        "model": request.body["model"],
        "output": [],
        "parallel_tool_calls": True,
        "tools": [],
        "tool_choice": "auto",
        **more,
    }


def _responses_events(request: Recorded, answer: Answer) -> Iterator[str]:
    yield _event("response.created", response=_response(request, "in_progress"))
    index = 0
    if answer.reasoning or answer.signature:
        yield from _reasoning_item(index, answer)
        index += 1
    if answer.search:
        yield from _search_item(index, answer.search)
        index += 1
    if answer.text:
        yield from _message_item(index, answer.text)
        index += 1
    for call in answer.calls:
        yield from _call_item(index, call)
        index += 1


def _reasoning_item(index: int, answer: Answer) -> Iterator[str]:
    """Each text is a summary part of its own; the item is signed once, at its end."""
    item = {"id": "rs_1", "type": "reasoning", "summary": []}
    yield _event("response.output_item.added", output_index=index, item=item)
    at = {"item_id": "rs_1", "output_index": index}
    for n, text in enumerate(answer.reasoning):
        part = {"type": "summary_text", "text": ""}
        yield _event("response.reasoning_summary_part.added", summary_index=n, part=part, **at)
        yield _event("response.reasoning_summary_text.delta", summary_index=n, delta=text, **at)
    done = {**item, "encrypted_content": answer.signature}
    yield _event("response.output_item.done", output_index=index, item=done)


def _search_item(index: int, search: Search) -> Iterator[str]:
    item = {"id": "ws_1", "type": "web_search_call"}
    added = {**item, "status": "in_progress", "action": {"type": "search", "query": ""}}
    yield _event("response.output_item.added", output_index=index, item=added)
    action = {"type": "search", "query": search.query, "sources": [{"type": "url", "url": search.url}]}
    done = {**item, "status": "completed", "action": action}
    yield _event("response.output_item.done", output_index=index, item=done)


def _message_item(index: int, texts: list[str]) -> Iterator[str]:
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress"}
    yield _event("response.output_item.added", output_index=index, item={**item, "content": []})
    at = {"item_id": "msg_1", "output_index": index, "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": []}
    yield _event("response.content_part.added", part=part, **at)
    for text in texts:
        yield _event("response.output_text.delta", delta=text, logprobs=[], **at)
    whole = "".join(texts)
    yield _event("response.output_text.done", text=whole, logprobs=[], **at)
    done = {**item, "status": "completed", "content": [{**part, "text": whole}]}
    yield _event("response.output_item.done", output_index=index, item=done)


def _call_item(index: int, call: Call) -> Iterator[str]:
    item_id = f"fc_{call.id}"
    item = {"id": item_id, "type": "function_call", "call_id": call.id, "name": call.name}
    at = {"item_id": item_id, "output_index": index}
    added = {**item, "arguments": "", "status": "in_progress"}
    yield _event("response.output_item.added", output_index=index, item=added)
    for text in call.args:
        yield _event("response.function_call_arguments.delta", delta=text, **at)
    whole = "".join(call.args)
    yield _event("response.function_call_arguments.done", arguments=whole, name=call.name, **at)
    done = {**item, "arguments": whole, "status": "completed"}
    yield _event("response.output_item.done", output_index=index, item=done)


def _responses_end(request: Recorded, answer: Answer) -> Iterator[str]:
    tokens = answer.tokens
    usage = {
        "input_tokens": tokens.input,
        "output_tokens": tokens.output,
        "total_tokens": tokens.input + tokens.output,
        "input_tokens_details": {"cached_tokens": tokens.cached},
        "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
    }
    if answer.finish == "stop":
        whole = _response(request, "completed", usage=usage)
        yield _event("response.completed", response=whole)
        return
    why = {"length": "max_output_tokens", "filter": "content_filter", "odd": "bored"}[answer.finish]
    whole = _response(request, "incomplete", usage=usage, incomplete_details={"reason": why})
    yield _event("response.incomplete", response=whole)
