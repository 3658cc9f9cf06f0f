"""A real HTTP server on a free port of this machine, in a thread, that answers from a script."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


@dataclass(kw_only=True)
class Call:
    """A tool call, its arguments in the fragments they are streamed in."""

    name: str
    args: list[str] = field(default_factory=lambda: ["{}"])
    id: str = "call_1"


@dataclass(kw_only=True)
class Search:
    """A web search that the provider runs itself, and the page that it finds."""

    query: str
    url: str
    title: str


@dataclass(kw_only=True)
class Tokens:
    """``input`` includes ``cached`` and ``written``; ``output`` includes ``reasoning``."""

    input: int = 10
    output: int = 5
    cached: int = 0
    written: int = 0
    reasoning: int = 0


@dataclass(kw_only=True)
class Answer:
    """One answer: reasoning, a web search, text, tool calls, and then how the stream goes on.

    ``then``: ``end`` is the protocol's proper end; ``error`` an error event inside the open stream; ``cut``
    drops the connection; ``eof`` closes it in good order, but too early; ``hang`` sends nothing more; ``drip``
    sends empty lines for ever.
    """

    text: list[str] = field(default_factory=list[str])
    reasoning: list[str] = field(default_factory=list[str])
    signature: str | None = None
    search: Search | None = None
    """Of the provider's own; responses and Anthropic only."""
    calls: list[Call] = field(default_factory=list[Call])
    mix_calls: bool = False
    """Send the fragments of several calls in turns, as some servers do."""
    tokens: Tokens = field(default_factory=Tokens)
    finish: Literal["stop", "length", "filter", "odd", "unsaid"] = "stop"
    """``odd``: a reason that no client knows; ``unsaid``: chat completions only; some servers give no reason."""
    then: Literal["end", "error", "cut", "eof", "hang", "drip"] = "end"


@dataclass(kw_only=True)
class HttpError:
    """An answer with an error status."""

    status: int
    code: str = ""
    """The error's code or type, as the protocol at hand places it."""
    message: str = "no"
    headers: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(kw_only=True)
class Hang:
    """No answer at all."""


@dataclass(kw_only=True)
class Recorded:
    """A request as it came in."""

    path: str
    port: int
    """The client's, which tells its connections apart."""
    headers: dict[str, str]
    body: Any


class CutError(Exception):
    """Raised in a stream, it makes the server drop the connection."""


class LoopbackServer(ABC):
    """Speaks one provider's protocol.

    Attributes:
        requests: What came in, in order.
    """

    paths: tuple[str, ...]

    def __init__(self) -> None:
        self.requests: list[Recorded] = []
        self._answers: deque[Answer | HttpError | Hang] = deque()
        self._came = threading.Semaphore(0)
        self._left = threading.Semaphore(0)
        self._socket = socket.create_server(("127.0.0.1", 0))
        routes = [Route(path, self._handle, methods=["POST"]) for path in self.paths]
        # Cut connections are raised errors for uvicorn: it would log each.
        config = uvicorn.Config(Starlette(routes=routes), log_level=60, lifespan="off", ws="none")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()

    @property
    @abstractmethod
    def base_url(self) -> str:
        """What a client of this protocol takes as its base URL."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def will(self, *answers: Answer | HttpError | Hang) -> None:
        """Answer the next requests so; without a script the answer is the text ``ok``."""
        self._answers.extend(answers)

    def reset(self) -> None:
        self.requests.clear()
        self._answers.clear()
        self._came, self._left = threading.Semaphore(0), threading.Semaphore(0)

    def stop(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(timeout=10)

    async def came(self) -> None:
        """Wait for the next request that was not yet waited for."""
        if not await asyncio.to_thread(self._came.acquire, timeout=120):
            raise AssertionError("no request came")

    async def client_left(self) -> None:
        """Wait until a client has closed its connection before its answer was complete."""
        if not await asyncio.to_thread(self._left.acquire, timeout=120):
            raise AssertionError("the client kept its connection")

    @abstractmethod
    def events(self, request: Recorded, answer: Answer) -> Iterator[str]:
        """The answer as server-sent events, without its end."""

    @abstractmethod
    def end(self, request: Recorded, answer: Answer) -> Iterator[str]:
        """The events that end the stream in good order."""

    def whole(self, request: Recorded, answer: Answer) -> dict[str, Any] | None:
        """The answer to a request that does not ask for a stream; None: stream it all the same."""
        return None

    @abstractmethod
    def error_event(self, request: Recorded) -> str:
        """An error inside the open stream."""

    @abstractmethod
    def error_body(self, error: HttpError) -> dict[str, Any]:
        """The body of an answer with an error status."""

    async def _handle(self, request: Request) -> Response:
        body = await request.json()
        assert request.client is not None
        recorded = Recorded(path=request.url.path, port=request.client.port, headers=dict(request.headers), body=body)
        self.requests.append(recorded)
        self._came.release()
        answer = self._answers.popleft() if self._answers else Answer(text=["ok"])
        if isinstance(answer, Hang):
            await self._wait(request)
            return Response(status_code=500)
        if isinstance(answer, HttpError):
            return JSONResponse(self.error_body(answer), status_code=answer.status, headers=answer.headers)
        if not body.get("stream") and (whole := self.whole(recorded, answer)) is not None:
            return JSONResponse(whole)
        return StreamingResponse(self._stream(request, recorded, answer), media_type="text/event-stream")

    async def _stream(self, request: Request, recorded: Recorded, answer: Answer) -> AsyncIterator[str]:
        for event in self.events(recorded, answer):
            yield event
        match answer.then:
            case "end":
                for event in self.end(recorded, answer):
                    yield event
            case "error":
                yield self.error_event(recorded)
            case "cut":
                raise CutError
            case "hang":
                await self._wait(request)
            case "drip":
                while True:
                    yield "\n"
                    await asyncio.sleep(0.01)
            case "eof":
                pass

    async def _wait(self, request: Request) -> None:
        """Until the client closes its connection; the response class may notice first and cancel us."""
        try:
            while (await request.receive())["type"] != "http.disconnect":
                pass
        finally:
            self._left.release()


def sse(data: Any, event: str | None = None) -> str:
    """One server-sent event."""
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {data if isinstance(data, str) else json.dumps(data)}\n\n"
