"""Runs the hooks of all processors.

``Pipeline`` is compiled once per agent, with a plan per hook; a hook without processors costs nothing. ``PipelineRun``
runs a pipeline for one request: it calls the processors and applies their results. Processors in lists, in
compositions and from memory are treated alike.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

from diarist.concurrency import gather_or_cancel
from diarist.message_list import MessageList
from diarist.messages import Json
from diarist.processors.base import Processor, call_sync_or_async
from diarist.processors.compose import (
    ERROR_HOOKS,
    INPUT_HOOKS,
    OUTPUT_HOOKS,
    Branch,
    Composition,
    Parallel,
    compile_plan,
    leaves,
)
from diarist.processors.hook_calls import HookCall, OnInput
from diarist.processors.hooks import SKIPPED, BadHookResult, Hook, PipelineState, dumps_state
from diarist.processors.placement import check_list
from diarist.processors.stream import StreamHooks
from diarist.run_context import RunContext
from diarist.tracing import span

logger = logging.getLogger("diarist")

_warned: set[type] = set()


class Pipeline:
    """The processors of an agent or of one call, by hook.

    ``plans`` has the hooks to call, by the hook's name and in order; ``guards`` are those ``process_input`` hooks that
    run at the same time as the first model call.

    Args:
        input: Processors for the input hooks.
        output: Processors for the output hooks.
        error: Processors that are called, with all others, when a model call failed.
        guarded: As in ``RunContext``.

    Attributes:
        ids: The ids of all processors, in order.
        hold_output: A processor holds back a step's chunks until the step is accepted.
        edits_in_place: A processor may change messages in place during a step.

    Raises:
        ConfigError: Two processors of a list share an id, an item of a list is no processor, or a processor has only
            one of ``dump_state`` and ``load_state``.
    """

    def __init__(
        self,
        input: Sequence[Processor[Any]] = (),
        output: Sequence[Processor[Any]] = (),
        error: Sequence[Processor[Any]] = (),
        *,
        guarded: bool = False,
    ) -> None:
        lists = {"input_processors": input, "output_processors": output, "error_processors": error}
        listed: list[Processor[Any]] = []
        for name, processors in lists.items():
            listed += check_list(name, processors)
        listed = _without_repetitions(listed)
        self._processors = _without_repetitions(leaves(listed))
        for processor in self._processors:
            dumps_state(processor)  # raises ConfigError for one that dumps its state and cannot load it
        places = {INPUT_HOOKS: input, OUTPUT_HOOKS: output, ERROR_HOOKS: listed}
        self.plans = {hook: compile_plan(given, hook) for hooks, given in places.items() for hook in hooks}
        self.guards = compile_plan([p for p in input if p.run_in_parallel], "process_input")
        self.plans["process_input"] = compile_plan([p for p in input if not p.run_in_parallel], "process_input")
        self.hold_output = any(processor.hold_output for processor in output)
        self.guarded = guarded
        self.ids = [processor.id for processor in self._processors]
        hooks_of_steps = self.plans.keys() - {"process_input"}
        self.edits_in_place = any(
            processor.edits_in_place
            and not isinstance(processor, Composition)
            and any(map(processor.handles, hooks_of_steps))
            for processor in self._processors
        )

    def start(self, context: RunContext[Any]) -> PipelineRun:
        """Return the pipeline's state for one request."""
        return PipelineRun(self, context, PipelineState(self._processors, context))


class PipelineRun:
    """Runs a pipeline for one request.

    Attributes:
        state: The processors' states, the current step and its retries.
    """

    def __init__(self, pipeline: Pipeline, context: RunContext[Any], state: PipelineState) -> None:
        self._pipeline = pipeline
        self._context = context
        self.state = state
        self.ids = pipeline.ids
        self.hold_output = pipeline.hold_output
        self.edits_in_place = pipeline.edits_in_place
        self.has_guards = bool(pipeline.guards)

    def has(self, hook: str) -> bool:
        """Return True if a processor has this hook."""
        return bool(self._pipeline.plans[hook])

    async def open(self) -> None:
        """Call ``process_input`` of the processors, except guards that run in parallel."""
        await self.ask(OnInput(messages=self._context.messages))

    async def reopen(self, dumped: Callable[[], Sequence[dict[str, Json]]], *, new_input: bool) -> None:
        """Open a resumed run: call ``process_input`` of the processors with ``opens_run`` (memory), load the states
        that ``dumped()`` returns, and if there is new input, call ``process_input`` of the others."""
        call = OnInput(messages=self._context.messages)
        plan = self._pipeline.plans["process_input"]
        opening = [hook for hook in plan if hook.processor.opens_run]
        for hook in opening:
            await self._run_hook(hook, call)
        self.state.load(dumped())
        for hook in plan if new_input else ():
            if hook not in opening:
                await self._run_hook(hook, call)

    async def ask(self, call: HookCall, *, last: Hook | None = None) -> None:
        """Call the hook of all processors that have it, in order, then ``last``; apply the returned values."""
        call.step = self.state.step_number
        for hook in self._pipeline.plans[call.hook]:
            if await self._run_hook(hook, call):
                return
        if last is not None:
            await self._run_hook(last, call)

    def start_guards(self, messages: MessageList) -> asyncio.Task[None] | None:
        """Start the input guards that run at the same time as the first model call, each on a snapshot."""
        if not self._pipeline.guards:
            return None

        async def guard(hook: Hook) -> None:
            call = OnInput(messages=messages.copy())
            before = call.copy().outcome()
            await self._run_hook(hook, call)
            if call.outcome() != before:
                what = "a change of the input; with run_in_parallel, it may only read the input and block"
                raise hook.bad_result(what, None)

        return asyncio.create_task(gather_or_cancel([guard(hook) for hook in self._pipeline.guards]))

    def open_stream(self) -> StreamHooks:
        """Return the stream hooks for one step's chunks."""
        return StreamHooks(self.state, self._pipeline.plans["process_output_stream"])

    def warn_of_dropped_chunks(self) -> None:
        """Warn of stream processors that returned None for every chunk of the run, once per class."""
        if not self.state.dropped:
            return
        plan = self._pipeline.plans["process_output_stream"]
        for hook in [leaf for entry in plan for leaf in entry.leaves()]:
            processor = hook.processor
            if 0 < self.state.chunks <= self.state.dropped[hook.key] and type(processor) not in _warned:
                _warned.add(type(processor))
                logger.warning(
                    "processor %r returned None for every chunk of a run, so all chunks were dropped; return the "
                    "chunk from process_output_stream, or DROP to drop it on purpose",
                    processor.id,
                )

    async def _run_hook(self, hook: Hook, call: HookCall) -> bool:
        """Run a hook, or the hooks of a composition's parts. Returns True if the hooks after it must not run."""
        if not hook.parts:
            return await self._call_processor(hook, call)
        match hook.processor:
            case Parallel() as parallel:
                return await self._run_parallel(hook, parallel, call)
            case Branch() as branch:
                args = call.args(self.state.common_args(hook, call.messages))
                with hook.naming(call.step):
                    chosen = await branch.chosen(args, hook.parts)
                return chosen is not None and await self._run_hook(chosen, call)
            case _:
                for part in hook.parts:
                    if part is not None and await self._run_hook(part, call):
                        return True
                return False

    async def _call_processor(self, hook: Hook, call: HookCall) -> bool:
        """Call one processor and apply the value that it returns. Returns True as ``_run_hook`` does."""
        with span(f"processor {hook.processor.id}", **hook.attributes) as current:
            before = call.content() if current.recording else {}
            args = call.args(self.state.common_args(hook, call.messages))
            undo_edits = call.undo_functions() if hook.fails_open else ()
            result = await hook.call(args, call.step)
            done = False
            if result is SKIPPED:
                for undo in undo_edits:
                    undo()
            else:
                done = _apply(hook, call, result)
                if hook.processor.edits_in_place and (wrong := call.flaw()):
                    raise hook.bad_result(wrong, call.step, did="left in")
            if current.recording:
                returned: list[str] = []
                if isinstance(result, dict):
                    returned = sorted(cast(dict[str, Any], result))
                elif result is not None:
                    returned = [type(result).__name__]
                changed = [name for name, value in call.content().items() if value != before[name]]
                current.set(
                    **{
                        "diarist.processor.returned": returned,
                        "diarist.processor.changed": changed,
                    }
                )
            return done

    async def _run_parallel(self, hook: Hook, parallel: Parallel, call: HookCall) -> bool:
        """Run the parts at the same time, each on a copy, and apply the outcome that ``merge`` returns."""
        untouched = call.copy()
        branches = [(part, call.copy()) for part in hook.parts if part is not None]
        await gather_or_cancel([self._run_hook(part, copy) for part, copy in branches])
        outcomes = [copy.outcome() for _, copy in branches]
        if call.origin is None and any(copy.messages.messages != untouched.messages.messages for _, copy in branches):
            raise hook.bad_result("changed messages, which this hook cannot return from a Parallel", call.step)
        if parallel.merge is None:
            if any(outcome != untouched.outcome() for outcome in outcomes):
                raise hook.bad_result(
                    "a change, but the Parallel has no merge function to choose an outcome", call.step
                )
            return False
        with hook.naming(call.step):
            merged = await call_sync_or_async(parallel.merge, outcomes)
        # This records the messages with which the merged ones are compared.
        call.args(self.state.common_args(hook, call.messages))
        return _apply(hook, call, merged)


def _without_repetitions(processors: Sequence[Processor[Any]]) -> list[Processor[Any]]:
    """Return each object once: a processor may be in several lists."""
    return list({id(processor): processor for processor in processors}.values())


def _apply(hook: Hook, call: HookCall, result: Any) -> bool:
    try:
        return call.apply(result)
    except BadHookResult as bad:
        raise hook.bad_result(bad, call.step) from bad.__cause__
