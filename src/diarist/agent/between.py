"""What is written outside the attempts at a step: before the first, between two, after the last."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from diarist.agent.outlet import Outlet
from diarist.agent.waiting import with_written
from diarist.chunks import DataChunk
from diarist.processors.pipeline import PipelineRun
from diarist.processors.streaming import StreamRun
from diarist.run_context import RunContext

T = TypeVar("T")


class Between:
    """Sends it as it is written, as the stream hooks leave it.

    Attributes:
        unkept: Data that was sent and belongs to the next message of the assistant.
    """

    def __init__(self, context: RunContext[Any], pipeline: PipelineRun, outlet: Outlet) -> None:
        self._context = context
        self._pipeline = pipeline
        self._outlet = outlet
        self.unkept: list[DataChunk] = []

    async def during(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work``, and send what is written meanwhile; all of it before what ``work`` raises is raised."""
        return await with_written(work, self._context.writer, self._send_written)

    async def send(self, stream: StreamRun) -> None:
        """Send what was written so far, past these stream hooks."""
        while self._context.writer:
            for written in self._context.writer.drain():
                for chunk in await stream.feed(written):
                    chunk.run_id = self._context.run_id
                    if isinstance(chunk, DataChunk) and not chunk.transient:
                        self.unkept.append(chunk)
                    await self._outlet.send(chunk)

    async def _send_written(self) -> None:
        if not self._context.writer:
            return
        stream = self._pipeline.open_stream()
        try:
            await self.send(stream)
        except BaseException as error:
            stream.close(error)
            raise
        stream.close()
