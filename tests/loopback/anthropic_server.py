"""Anthropic's messages protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.loopback.server import Answer, HttpError, LoopbackServer, Recorded, sse


class AnthropicServer(LoopbackServer):
    paths = ("/v1/messages",)

    @property
    def base_url(self) -> str:
        return self.url

    def events(self, request: Recorded, answer: Answer) -> Iterator[str]:
        tokens = answer.tokens
        usage = {
            "input_tokens": tokens.input - tokens.cached - tokens.written,
            "cache_read_input_tokens": tokens.cached,
            "cache_creation_input_tokens": tokens.written,
            "output_tokens": 1,
        }
        message = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": request.body["model"],
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        yield _event("message_start", message=message)
        for index, (start, deltas) in enumerate(_blocks(answer)):
            yield _event("content_block_start", index=index, content_block=start)
            for delta in deltas:
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)

    def end(self, request: Recorded, answer: Answer) -> Iterator[str]:
        finish = {"stop": "end_turn", "length": "max_tokens", "filter": "refusal", "odd": "bored"}[answer.finish]
        stop = {"stop_reason": "tool_use" if answer.calls else finish, "stop_sequence": None}
        usage: dict[str, Any] = {"output_tokens": answer.tokens.output}
        if answer.tokens.reasoning:
            usage["output_tokens_details"] = {"thinking_tokens": answer.tokens.reasoning}
        yield _event("message_delta", delta=stop, usage=usage)
        yield _event("message_stop")

    def error_event(self, request: Recorded) -> str:
        return _event("error", error={"type": "overloaded_error", "message": "Overloaded"})

    def error_body(self, error: HttpError) -> dict[str, Any]:
        fields = {"type": error.code or "invalid_request_error", "message": error.message}
        return {"type": "error", "error": fields, "request_id": "req_1"}


def _event(kind: str, **fields: Any) -> str:
    return sse({"type": kind, **fields}, kind)


def _blocks(answer: Answer) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each content block as its start and its deltas."""
    if answer.reasoning or answer.signature:
        deltas = [{"type": "thinking_delta", "thinking": text} for text in answer.reasoning]
        if answer.signature:
            deltas.append({"type": "signature_delta", "signature": answer.signature})
        yield {"type": "thinking", "thinking": "", "signature": ""}, deltas
    if answer.search:
        query = json.dumps({"query": answer.search.query})
        use = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
        yield use, [{"type": "input_json_delta", "partial_json": query}]
        page = {"type": "web_search_result", "url": answer.search.url, "title": answer.search.title}
        found = [{**page, "encrypted_content": "c2VjcmV0", "page_age": None}]
        yield {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": found}, []
    if answer.text:
        start = {"type": "text", "text": ""}
        yield start, [{"type": "text_delta", "text": text} for text in answer.text]
    for call in answer.calls:
        start = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        yield start, [{"type": "input_json_delta", "partial_json": text} for text in call.args]
