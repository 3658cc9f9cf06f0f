"""Google's generateContent protocol, streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.loopback.server import Answer, Call, HttpError, LoopbackServer, Recorded, sse

_STATUS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND"}


class GoogleServer(LoopbackServer):
    paths = ("/v1beta/models/{model}",)

    @property
    def base_url(self) -> str:
        return self.url

    def events(self, request: Recorded, answer: Answer) -> Iterator[str]:
        for text in answer.reasoning:
            yield _chunk(request, [{"text": text, "thought": True}])
        for index, text in enumerate(answer.text):
            signed = {"thoughtSignature": answer.signature} if answer.signature and index == 0 else {}
            yield _chunk(request, [{"text": text, **signed}])
        for call in answer.calls:
            yield _chunk(request, [_call(call)])

    def end(self, request: Recorded, answer: Answer) -> Iterator[str]:
        tokens = answer.tokens
        usage = {
            "promptTokenCount": tokens.input,
            "candidatesTokenCount": tokens.output - tokens.reasoning,
            "thoughtsTokenCount": tokens.reasoning,
            "cachedContentTokenCount": tokens.cached,
            "totalTokenCount": tokens.input + tokens.output,
        }
        finish = {"stop": "STOP", "length": "MAX_TOKENS", "filter": "SAFETY", "odd": "OTHER"}[answer.finish]
        yield _chunk(request, [], finish=finish, usageMetadata=usage)

    def error_event(self, request: Recorded) -> str:
        return sse({"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}})

    def error_body(self, error: HttpError) -> dict[str, Any]:
        status = error.code or _STATUS.get(error.status, "UNKNOWN")
        return {"error": {"code": error.status, "message": error.message, "status": status}}


def _chunk(request: Recorded, parts: list[dict[str, Any]], *, finish: str | None = None, **more: Any) -> str:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    model = request.path.rpartition("/")[2].partition(":")[0]
    return sse({"candidates": [candidate], "modelVersion": model, "responseId": "r1", **more})


def _call(call: Call) -> dict[str, Any]:
    """Arguments come whole, as an object."""
    return {"functionCall": {"id": call.id, "name": call.name, "args": json.loads("".join(call.args))}}
