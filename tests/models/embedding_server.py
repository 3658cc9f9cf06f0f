"""OpenAI's embeddings endpoint on loopback: each text becomes the lengths of its words."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


class EmbeddingServer:
    """Gives ``dimension`` numbers a text, or what the request asks for; ``fail`` answers with that status instead,
    ``drips`` with blanks that do not end."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.dimension = 4
        self.fail: int | None = None
        self.drips = False
        self._socket = socket.create_server(("127.0.0.1", 0))
        app = Starlette(routes=[Route("/v1/embeddings", self._embed, methods=["POST"])])
        self._server = uvicorn.Server(uvicorn.Config(app, log_level=60, lifespan="off", ws="none"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"

    def stop(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(timeout=10)

    async def _embed(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        if self.drips:
            return StreamingResponse(_blanks(), media_type="application/json")
        if self.fail is not None:
            problem = {"message": "no", "type": "invalid_request_error", "code": None, "param": None}
            return JSONResponse({"error": problem}, status_code=self.fail)
        size = body.get("dimensions") or self.dimension
        data = [
            {"object": "embedding", "index": index, "embedding": [float(len(text) + n) for n in range(size)]}
            for index, text in enumerate(body["input"])
        ]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        return JSONResponse({"object": "list", "data": data, "model": body["model"], "usage": usage})


async def _blanks() -> AsyncIterator[str]:
    while True:
        yield " "
        await asyncio.sleep(0.01)
