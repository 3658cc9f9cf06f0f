"""The plan of a hook: which processors it asks, compiled once from lists and compositions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from diarist.processors.base import Processor
from diarist.processors.compose import Branch, Composition, Condition, Merge, Parallel
from diarist.processors.hooks import Hook

INPUT_HOOKS = ("process_input", "process_input_step", "process_llm_request", "process_llm_response")
OUTPUT_HOOKS = (
    "process_output_stream",
    "process_output_step",
    "process_tool_call",
    "process_tool_result",
    "process_output_result",
)
ERROR_HOOKS = ("process_api_error",)


@dataclass(frozen=True, slots=True)
class Chain:
    """One after the other."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Fork:
    """Side by side; ``owner`` is the composition, for errors."""

    owner: Hook
    branches: tuple[Node, ...]
    merge: Merge | None


@dataclass(frozen=True, slots=True)
class Choice:
    """The first case whose condition holds; a part without this hook is None."""

    owner: Hook
    cases: tuple[tuple[Condition, Node | None], ...]
    default: Node | None


Node: TypeAlias = Hook | Chain | Fork | Choice


def leaves(processors: Sequence[Processor[Any]]) -> list[Processor[Any]]:
    """All processors, compositions and their parts included."""
    out: list[Processor[Any]] = []
    for processor in processors:
        out.append(processor)
        if isinstance(processor, Composition):
            out += leaves(processor.parts)
    return out


def compile_plan(processors: Sequence[Processor[Any]], hook: str, slots: Mapping[int, int]) -> tuple[Node, ...]:
    """The nodes of one hook, in order; processors that do not have it are left out.

    ``slots`` gives each processor's place in the list of states, by ``id()``.
    """
    nodes = (_node(processor, hook, slots) for processor in processors)
    return tuple(node for node in nodes if node is not None)


def _node(processor: Processor[Any], hook: str, slots: Mapping[int, int]) -> Node | None:
    if not processor.handles(hook):
        return None
    owner = Hook.of(processor, hook, slots[id(processor)])
    match processor:
        case Parallel():
            return Fork(owner, compile_plan(processor.parts, hook, slots), processor.merge)
        case Branch():
            parts = [_node(part, hook, slots) for part in processor.parts]
            cases = tuple(zip(processor.conditions, parts, strict=False))
            return Choice(owner, cases, parts[-1] if processor.default is not None else None)
        case Composition():
            return Chain(compile_plan(processor.parts, hook, slots))
        case _:
            return owner
