"""Every hook of every processor runs here, and nowhere else.

``Pipeline`` is compiled once per agent: a plan per hook, so that a hook nobody has costs nothing. ``PipelineRun``
is a pipeline at work on one request: it holds the processors' states, asks them, and has what they return
applied. Whether a processor stands in a list, in a composition or comes from memory makes no difference here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

from diarist.concurrency import side_by_side
from diarist.message_list import MessageList
from diarist.messages import Json
from diarist.processors.base import Processor
from diarist.processors.cases import Case, InputCase
from diarist.processors.closing import closable
from diarist.processors.compose import Composition, holds, merge_of
from diarist.processors.hooks import SKIPPED, Hook
from diarist.processors.places import check
from diarist.processors.plan import (
    ERROR_HOOKS,
    INPUT_HOOKS,
    OUTPUT_HOOKS,
    Chain,
    Choice,
    Fork,
    Node,
    compile_plan,
    leaves,
)
from diarist.processors.states import States, dumps
from diarist.processors.streaming import StreamRun, hooks_of
from diarist.run_context import RunContext, Writer
from diarist.tracing import span

logger = logging.getLogger("diarist")

_warned: set[type] = set()


class Pipeline:
    """The processors of an agent or of one call, by hook.

    Args:
        input: Asked in the input hooks.
        output: Asked in the output hooks.
        error: Asked, with all others, when a model call failed.

    Attributes:
        ids: Of all processors, in order.
        hold_output: A processor withholds a step's chunks until it was accepted.
        edits_in_place: A processor may change messages in place while a step is at work.
        closable: The processors that have something to close.

    Raises:
        ConfigError: Two processors of a list share an id, or a list holds something else than processors; one has
            ``dump_state`` without ``load_state``.
    """

    def __init__(
        self,
        input: Sequence[Processor[Any]] = (),
        output: Sequence[Processor[Any]] = (),
        error: Sequence[Processor[Any]] = (),
    ) -> None:
        lists = {"input_processors": input, "output_processors": output, "error_processors": error}
        each: dict[int, Processor[Any]] = {}
        for name, processors in lists.items():
            each |= {id(processor): processor for processor in check(name, processors)}
        self._processors = list({id(part): part for part in leaves(list(each.values()))}.values())
        for processor in self._processors:
            dumps(processor)
        slots = {id(processor): slot for slot, processor in enumerate(self._processors)}
        self.plans: dict[str, tuple[Node, ...]] = {
            **{name: compile_plan(input, name, slots) for name in INPUT_HOOKS},
            **{name: compile_plan(output, name, slots) for name in OUTPUT_HOOKS},
            **{name: compile_plan(list(each.values()), name, slots) for name in ERROR_HOOKS},
        }
        self.guards = compile_plan([p for p in input if p.run_in_parallel], "process_input", slots)
        self.plans["process_input"] = compile_plan([p for p in input if not p.run_in_parallel], "process_input", slots)
        self.hold_output = any(processor.hold_output for processor in output)
        self.ids = [processor.id for processor in self._processors]
        self.edits_in_place = any(map(_edits_in_steps, self._processors))
        self.closable = closable(self._processors)

    def start(self, context: RunContext[Any]) -> PipelineRun:
        return PipelineRun(self, context, States(self._processors, context.writer))


class PipelineRun:
    """A pipeline at work on one request.

    Attributes:
        retry_count: Attempts of the current step that were rejected.
        step_number: The current step; None outside the steps.
        states: The processors' states.
        silent, answering: Slots of the processors whose stream hook returned None, and something else.
    """

    def __init__(self, pipeline: Pipeline, context: RunContext[Any], states: States) -> None:
        self._pipeline = pipeline
        self._context = context
        self.states = states
        self.silent: set[int] = set()
        self.answering: set[int] = set()
        self.retry_count = 0
        self.step_number: int | None = None

    @property
    def writer(self) -> Writer:
        return self._context.writer

    @property
    def hold_output(self) -> bool:
        return self._pipeline.hold_output

    @property
    def edits_in_place(self) -> bool:
        return self._pipeline.edits_in_place

    @property
    def closable(self) -> list[Processor[Any]]:
        return self._pipeline.closable

    @property
    def ids(self) -> list[str]:
        return list(self._pipeline.ids)

    @property
    def has_guards(self) -> bool:
        return bool(self._pipeline.guards)

    def has(self, hook: str) -> bool:
        """Whether anybody is to be asked."""
        return bool(self._pipeline.plans[hook])

    async def open(self) -> None:
        """``process_input``."""
        await self.ask(InputCase(messages=self._context.messages))

    async def reopen(self, dumped: Callable[[], Sequence[dict[str, Json]]], *, new_input: bool) -> None:
        """Open a run that goes on: those are asked first that open it, as memory does; then ``dumped()`` has the
        states that were dumped, and the others are asked if there is new input."""
        case = InputCase(messages=self._context.messages)
        plan = self._pipeline.plans["process_input"]
        opening = [node for node in plan if isinstance(node, Hook) and node.processor.opens_run]
        for node in opening:
            await self._run(node, case)
        self.states.load(dumped())
        for node in plan if new_input else ():
            if node not in opening:
                await self._run(node, case)

    async def ask(self, case: Case, *, last: Hook | None = None) -> None:
        """Ask everybody who has the case's hook, in order, and apply what they return; ``last`` comes last."""
        for node in self._pipeline.plans[case.hook]:
            if await self._run(node, case):
                return
        if last is not None:
            await self._run(last, case)

    def start_guards(self, messages: MessageList) -> asyncio.Task[None] | None:
        """Set the input guards that run beside the first model call to work, each on a snapshot."""
        if not self._pipeline.guards:
            return None
        return asyncio.create_task(side_by_side([self._guard(node, messages) for node in self._pipeline.guards]))

    async def _guard(self, node: Node, messages: MessageList) -> None:
        case = InputCase(messages=messages.copy())
        before = case.copy().outcome()
        await self._run(node, case)
        if case.outcome() != before:
            what = "a change of the input; beside the model call (run_in_parallel) it may only look and block"
            raise _first_hook(node).bad_result(what, None)

    def open_stream(self) -> StreamRun:
        """The stream hooks for one step's chunks."""
        return StreamRun(self, self._pipeline.plans["process_output_stream"])

    def warn_of_silence(self) -> None:
        """Name the stream processors that returned None for every chunk of the run, each class once."""
        silent = self.silent - self.answering
        for node in hooks_of(self._pipeline.plans["process_output_stream"]) if silent else ():
            if node.slot in silent and type(node.processor) not in _warned:
                _warned.add(type(node.processor))
                logger.warning(
                    "processor %r returned None for every chunk of a run, so that all of them were dropped; return "
                    "the chunk from process_output_stream, or DROP where dropping is meant",
                    node.processor.id,
                )

    def base(self, hook: Hook, messages: MessageList | None = None) -> dict[str, Any]:
        """The arguments that every hook gets."""
        return {
            "context": self._context,
            "message_list": self._context.messages if messages is None else messages,
            "processor_id": hook.processor.id,
            "state": self.states.of(hook.slot) if hook.slot >= 0 else {},
            "retry_count": self.retry_count,
        }

    # -- nodes

    async def _run(self, node: Node, case: Case) -> bool:
        """True when nobody after this node is to be asked."""
        match node:
            case Hook() if not self.states.ready(node):
                return False
            case Hook():
                with span(f"processor {node.processor.id}", **node.attributes) as current:
                    before = case.content() if current.recording else {}
                    args = case.args(self.base(node, case.messages))
                    take_back = case.keep() if node.fails_open else None
                    result = await node.call(args, case.step)
                    if result is SKIPPED:
                        done = False
                        if take_back is not None:
                            take_back()
                    else:
                        done = case.take(node, args, result)
                        if node.processor.edits_in_place and (wrong := case.flaw()):
                            raise node.bad_edit(wrong, case.step)
                    if current.recording:
                        changed = [name for name, value in case.content().items() if value != before[name]]
                        current.set(
                            **{"diarist.processor.returned": _said(result), "diarist.processor.changed": changed}
                        )
                    return done
            case Chain():
                for part in node.nodes:
                    if await self._run(part, case):
                        return True
                return False
            case Choice():
                chosen = await self._choose(node, case)
                return chosen is not None and await self._run(chosen, case)
            case Fork():
                return await self._fork(node, case)

    async def _choose(self, node: Choice, case: Case) -> Node | None:
        args = case.args(self.base(node.owner, case.messages))
        for condition, part in node.cases:
            if await node.owner.guarded(holds(condition, args), case.step):
                return part
        return node.default

    async def _fork(self, node: Fork, case: Case) -> bool:
        untouched = case.copy()
        copies = [case.copy() for _ in node.branches]
        await side_by_side([self._run(part, copy) for part, copy in zip(node.branches, copies, strict=True)])
        outcomes = [copy.outcome() for copy in copies]
        if not case.edits_messages and any(copy.messages.messages != untouched.messages.messages for copy in copies):
            raise node.owner.bad_result("changed messages, which this hook of a Parallel cannot hand back", case.step)
        if node.merge is None:
            if any(outcome != untouched.outcome() for outcome in outcomes):
                raise node.owner.bad_result("a change, though Parallel has no merge to decide what holds", case.step)
            return False
        merged = await node.owner.guarded(merge_of(node.merge, outcomes), case.step)
        args = case.args(self.base(node.owner, case.messages))
        return case.take(node.owner, args, merged)


def _edits_in_steps(processor: Processor[Any]) -> bool:
    hooks = {*INPUT_HOOKS, *OUTPUT_HOOKS, *ERROR_HOOKS} - {"process_input"}
    return (
        processor.edits_in_place
        and not isinstance(processor, Composition)
        and any(processor.handles(hook) for hook in hooks)
    )


def _first_hook(node: Node) -> Hook:
    match node:
        case Hook():
            return node
        case Chain():
            return _first_hook(node.nodes[0])
        case Fork() | Choice():
            return node.owner


def _said(result: Any) -> list[str]:
    """What a processor returned, for its span: the keys of a dict, else the kind of value; nothing for None."""
    if result is None:
        return []
    return sorted(cast(dict[str, Any], result)) if isinstance(result, dict) else [type(result).__name__]
