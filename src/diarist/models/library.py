"""Models of pydantic-ai as models of ours."""

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
    """A model behind pydantic-ai's direct streaming API.

    The library, and the provider's own client, are loaded at the first call. Retries of that client are off:
    whoever calls the model decides about them. Calls may run side by side and in several event loops; each has
    a client to itself while it runs.

    What is sent:
        - System messages at the front are joined, with a blank line between them, into one. Where cache
          breakpoints are named (Anthropic, Bedrock), only those up to the first marked one are; the others
          become content blocks of the first user message, so that each keeps a breakpoint of its own.
        - Reasoning goes back only to the provider that made it, and so do calls of tools that it ran itself, with
          their results.
        - ``request.output`` is asked for natively where the model can; elsewhere it is left out, and the
          prompt has to ask for it.
    """

    def __init__(self, *, provider: str, name: str, build: Callable[[], LibModel]) -> None:
        """``build`` makes a library model with a client of its own; it is called when no idle one is there."""
        self.provider = provider
        self.name = name
        self.cache_breakpoints = provider in _NAMED_BREAKPOINTS
        self._build = build
        self._borrowed: LibModel | None = None
        self._idle: WeakKeyDictionary[asyncio.AbstractEventLoop, list[LibModel]] = WeakKeyDictionary()

    @classmethod
    def around(cls, model: LibModel) -> LibraryModel:
        """A model object that the caller made.

        It is entered around each call, so that its client fits the running event loop. A connection is
        therefore kept for the next call only if the caller has entered the object, or gave it an HTTP client.
        """
        wrapped = cls(provider=model.system, name=model.model_name, build=lambda: model)
        wrapped._borrowed = model
        return wrapped

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        from pydantic_ai.direct import model_request_stream

        from diarist.models.errors import typed_errors
        from diarist.models.from_library import ChunkReader
        from diarist.models.library_call import call_for

        with typed_errors(self.provider):
            async with self._client() as model:
                call = call_for(request, model, breakpoints=self.cache_breakpoints)
                opened = model_request_stream(
                    model,
                    call.messages,
                    model_settings=call.settings,
                    model_request_parameters=call.parameters,
                    instrument=False,  # our own spans cover the call
                )
                async with opened as response, aclosing(cast(Any, aiter(response))) as events:
                    reader = ChunkReader(response, provider=self.provider)
                    async for event in events:
                        for chunk in reader.read(event):
                            yield chunk
                    rest = list(reader.finish(complete=reader.reports_its_end(model)))
        # The call is over: whoever stops reading at the last chunk has not left it early.
        for chunk in rest:
            yield chunk

    async def close(self) -> None:
        """Close this event loop's idle connections; a model object that the caller made is left alone."""
        for model in self._idle.pop(asyncio.get_running_loop(), []):
            await _close(model)

    @asynccontextmanager
    async def _client(self) -> AsyncGenerator[LibModel]:
        """A client for one call.

        It is used again unless the call was left early: not every provider's client drops the connection then,
        so it is closed.
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

    with CancelScope(shield=True):  # also while being cancelled
        async with model:  # leaving it is the library's way to close a client
            pass
