"""The ``process_output_stream`` hooks of a run, chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from diarist.chunks import Chunk, DataChunk
from diarist.processors.base import Drop, ProcessOutputStreamArgs
from diarist.processors.hooks import Hook

if TYPE_CHECKING:
    from diarist.processors.pipeline import PipelineRun


class StreamRun:
    """The ``process_output_stream`` hooks at work on the chunks of one step."""

    def __init__(self, run: PipelineRun, hooks: tuple[Hook, ...]) -> None:
        self._run = run
        self._hooks = hooks
        self.parts: list[Chunk] = []
        self._args: dict[int, ProcessOutputStreamArgs[Any]] = {}
        self.idle = not hooks

    async def feed(self, chunk: Chunk) -> Sequence[Chunk]:
        """What the client gets for one chunk; it passes the processors in order."""
        self.parts.append(chunk)
        current: list[Chunk] = [chunk]
        for hook in self._hooks:
            following: list[Chunk] = []
            for part in current:
                if isinstance(part, DataChunk) and not hook.processor.process_data_parts:
                    following.append(part)
                    continue
                result = await self._one(hook, part)
                if result is None:
                    self._run.silent.add(hook.slot)
                    continue
                self._run.answering.add(hook.slot)
                if result is part:
                    following.append(part)
                elif isinstance(result, list | tuple):
                    following.extend(self._chunks(hook, cast(Sequence[Any], result)))
                elif not isinstance(result, Drop):
                    following.extend(self._chunks(hook, [result]))
            current = following
            if not current:
                break
        return current

    async def _one(self, hook: Hook, part: Chunk) -> Any:
        args = self._args.get(hook.slot)
        if args is None:
            base = self._run.base(hook)
            args = ProcessOutputStreamArgs(**base, part=part, stream_parts=self.parts)
            self._args[hook.slot] = args
        args.part = part
        return await hook.call(args, self._run.step_number)

    def _chunks(self, hook: Hook, values: Sequence[Any]) -> list[Chunk]:
        if bad := [value for value in values if not isinstance(value, Chunk)]:
            raise hook.bad_result(f"{type(bad[0]).__name__}; allowed: chunks, None, DROP", self._run.step_number)
        return list(values)
