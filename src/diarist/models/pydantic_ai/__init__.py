"""Models of pydantic-ai behind diarist's interface."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from diarist.chunks import Chunk
from diarist.models.base import Model, ModelRequest

if TYPE_CHECKING:
    from pydantic_ai.models import Model as LibModel

_NAMED_BREAKPOINTS = ("anthropic", "bedrock")


class LibraryModel(Model):
    """A model that is called through pydantic-ai's direct streaming API.

    The library and the provider's client are loaded at the first call. The client's own retries are off. Calls may
    run concurrently and in several event loops; each call uses a client that no other call uses at that time.

    The request:
        - Leading system messages are joined into one, with blank lines between them. For providers with explicit cache
          breakpoints (Anthropic, Bedrock), only those up to the first breakpoint are joined; the others become
          content blocks of the first user message, so that each can have its own breakpoint.
        - Reasoning, and the calls and results of tools that a provider ran itself, go back only to that provider.
        - ``request.output`` is sent if the model supports schemas; otherwise the prompt must describe the format.
    """

    def __init__(self, *, provider: str, name: str, build: Callable[[], LibModel]) -> None:
        """``build`` returns a library model with its own client; it is called when no idle model is left."""
        self.provider = provider
        self.name = name
        self.cache_breakpoints = provider in _NAMED_BREAKPOINTS
        self._build = build
        self._borrowed: LibModel | None = None
        self._idle: WeakKeyDictionary[asyncio.AbstractEventLoop, list[LibModel]] = WeakKeyDictionary()

    @classmethod
    def around(cls, model: LibModel) -> LibraryModel:
        """Return a model that wraps the caller's model object.

        The object is entered (``async with``) for each call, so that its client belongs to the running event loop.
        Connections are kept between calls only if the caller has entered the object or given it an HTTP client.
        """
        wrapped = cls(provider=model.system, name=model.model_name, build=lambda: model)
        wrapped._borrowed = model
        return wrapped

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        from pydantic_ai.direct import model_request_stream

        from diarist.models.pydantic_ai.call import parameters_for, settings_for
        from diarist.models.pydantic_ai.errors import typed_errors, unreadable_answers
        from diarist.models.pydantic_ai.prompt import to_messages
        from diarist.models.pydantic_ai.reader import ChunkReader

        with typed_errors(self.provider):
            async with self._client() as model:
                opened = model_request_stream(
                    model,
                    to_messages(request.prompt, system=model.system, breakpoints=self.cache_breakpoints),
                    model_settings=settings_for(request, model, breakpoints=self.cache_breakpoints),
                    model_request_parameters=parameters_for(request, model),
                    instrument=False,  # diarist has its own spans
                )
                async with opened as response, aclosing(cast(Any, aiter(response))) as events:
                    reader = ChunkReader(response, provider=self.provider)
                    with unreadable_answers(self.provider):
                        async for event in events:
                            for chunk in reader.read(event):
                                yield chunk
                        rest = list(reader.finish(model))
        # The call is over, so a consumer that stops here has not cancelled it.
        for chunk in rest:
            yield chunk

    async def close(self) -> None:
        """Close this event loop's idle connections. Does not close a model object that the caller passed."""
        for model in self._idle.pop(asyncio.get_running_loop(), []):
            await _close(model)

    @asynccontextmanager
    async def _client(self) -> AsyncGenerator[LibModel]:
        """Return a client for one call.

        It is reused, unless the call was cancelled: then it is closed, since some clients keep the connection open.
        """
        if self._borrowed is not None:
            async with self._borrowed as model:
                yield model
            return
        loop = asyncio.get_running_loop()
        idle = self._idle.get(loop)
        model = idle.pop() if idle else self._build()
        ended = False
        try:
            yield model
            ended = True
        except Exception:
            ended = True
            raise
        finally:
            if ended:
                self._idle.setdefault(loop, []).append(model)
            else:
                await _close(model)


async def _close(model: LibModel) -> None:
    from anyio import CancelScope

    with CancelScope(shield=True):  # also when cancelled
        async with model:  # leaving the context closes the client
            pass
