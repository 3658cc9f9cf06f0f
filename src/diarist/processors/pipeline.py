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
from diarist.processors.base import Processor, returned
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
from diarist.processors.hooks import SKIPPED, BadHookResult, Hook, PipelineState, dumps
from diarist.processors.placement import check_list
from diarist.processors.stream import StreamHooks
from diarist.run_context import RunContext
from diarist.tracing import span

logger = logging.getLogger("diarist")

_warned: set[type] = set()


class Pipeline:
    """The processors of an agent or of one call, by hook.

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
        each: dict[int, Processor[Any]] = {}
        for name, processors in lists.items():
            each |= {id(processor): processor for processor in check_list(name, processors)}
        self._processors = list({id(part): part for part in leaves(list(each.values()))}.values())
        for processor in self._processors:
            dumps(processor)
        self.plans: dict[str, tuple[Hook, ...]] = {
            **{name: compile_plan(input, name) for name in INPUT_HOOKS},
            **{name: compile_plan(output, name) for name in OUTPUT_HOOKS},
            **{name: compile_plan(list(each.values()), name) for name in ERROR_HOOKS},
        }
        self.guards = compile_plan([p for p in input if p.run_in_parallel], "process_input")
        self.plans["process_input"] = compile_plan([p for p in input if not p.run_in_parallel], "process_input")
        self.hold_output = any(processor.hold_output for processor in output)
        self.guarded = guarded
        self.ids = [processor.id for processor in self._processors]
        asked = {*INPUT_HOOKS, *OUTPUT_HOOKS, *ERROR_HOOKS} - {"process_input"}
        self.edits_in_place = any(
            part.edits_in_place and not isinstance(part, Composition) and any(map(part.handles, asked))
            for part in self._processors
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
        case = OnInput(messages=self._context.messages)
        plan = self._pipeline.plans["process_input"]
        opening = [hook for hook in plan if hook.processor.opens_run]
        for hook in opening:
            await self._run(hook, case)
        self.state.load(dumped())
        for hook in plan if new_input else ():
            if hook not in opening:
                await self._run(hook, case)

    async def ask(self, case: HookCall, *, last: Hook | None = None) -> None:
        """Call the hook of all processors that have it, in order, then ``last``; apply the returned values."""
        case.step = self.state.step_number
        for hook in self._pipeline.plans[case.hook]:
            if await self._run(hook, case):
                return
        if last is not None:
            await self._run(last, case)

    def start_guards(self, messages: MessageList) -> asyncio.Task[None] | None:
        """Start the input guards that run at the same time as the first model call, each on a snapshot."""
        if not self._pipeline.guards:
            return None

        async def guard(hook: Hook) -> None:
            case = OnInput(messages=messages.copy())
            before = case.copy().outcome()
            await self._run(hook, case)
            if case.outcome() != before:
                what = "a change of the input; with run_in_parallel, it may only read the input and block"
                raise hook.bad_result(what, None)

        return asyncio.create_task(gather_or_cancel([guard(hook) for hook in self._pipeline.guards]))

    def open_stream(self) -> StreamHooks:
        """Return the stream hooks for one step's chunks."""
        return StreamHooks(self.state, self._pipeline.plans["process_output_stream"])

    def warn_of_silence(self) -> None:
        """Warn of stream processors that returned None for every chunk of the run, once per class."""
        for node in self._pipeline.plans["process_output_stream"] if self.state.dropped else ():
            for hook in node.leaves():
                processor = hook.processor
                if 0 < self.state.chunks <= self.state.dropped[hook.key] and type(processor) not in _warned:
                    _warned.add(type(processor))
                    logger.warning(
                        "processor %r returned None for every chunk of a run, so all chunks were dropped; return the "
                        "chunk from process_output_stream, or DROP to drop it on purpose",
                        processor.id,
                    )

    async def _run(self, hook: Hook, case: HookCall) -> bool:
        """Run a hook, or the hooks of a composition's parts. Returns True if the hooks after it must not run."""
        if not hook.parts:
            return await self._call(hook, case)
        match hook.processor:
            case Parallel() as parallel:
                return await self._fork(hook, parallel, case)
            case Branch() as branch:
                args = case.args(self.state.args(hook, case.messages))
                with hook.naming(case.step):
                    chosen = await branch.chosen(args, hook.parts)
                return chosen is not None and await self._run(chosen, case)
            case _:
                for part in hook.parts:
                    if part is not None and await self._run(part, case):
                        return True
                return False

    async def _call(self, hook: Hook, case: HookCall) -> bool:
        with span(f"processor {hook.processor.id}", **hook.attributes) as current:
            before = case.content() if current.recording else {}
            args = case.args(self.state.args(hook, case.messages))
            undo = case.keep() if hook.fails_open else ()
            result = await hook.call(args, case.step)
            done = False
            if result is SKIPPED:
                for take_back in undo:
                    take_back()
            else:
                done = _taken(hook, case, result)
                if hook.processor.edits_in_place and (wrong := case.flaw()):
                    raise hook.bad_result(wrong, case.step, did="left in")
            if current.recording:
                said = sorted(cast(dict[str, Any], result)) if isinstance(result, dict) else [type(result).__name__]
                changed = [name for name, value in case.content().items() if value != before[name]]
                current.set(
                    **{
                        "diarist.processor.returned": [] if result is None else said,
                        "diarist.processor.changed": changed,
                    }
                )
            return done

    async def _fork(self, hook: Hook, parallel: Parallel, case: HookCall) -> bool:
        untouched = case.copy()
        branches = [(part, case.copy()) for part in hook.parts if part is not None]
        await gather_or_cancel([self._run(part, copy) for part, copy in branches])
        outcomes = [copy.outcome() for _, copy in branches]
        if case.origin is None and any(copy.messages.messages != untouched.messages.messages for _, copy in branches):
            raise hook.bad_result("changed messages, which this hook cannot return from a Parallel", case.step)
        if parallel.merge is None:
            if any(outcome != untouched.outcome() for outcome in outcomes):
                raise hook.bad_result(
                    "a change, but the Parallel has no merge function to choose an outcome", case.step
                )
            return False
        with hook.naming(case.step):
            merged = await returned(parallel.merge, outcomes)
        case.args(self.state.args(hook, case.messages))  # records the messages to which the merged ones are compared
        return _taken(hook, case, merged)


def _taken(hook: Hook, case: HookCall, result: Any) -> bool:
    try:
        return case.take(result)
    except BadHookResult as bad:
        raise hook.bad_result(bad, case.step) from bad.__cause__
