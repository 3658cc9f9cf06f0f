"""The axes of the matrix, the cells that cannot occur, and what a processor does in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from diarist import Message, Processor
from diarist.chunks import TextDelta, TextPayload
from diarist.message_list import MessageList
from diarist.messages import Prompt, PromptMessage, TextPart
from diarist.processors.compose import Branch
from diarist.processors.compose import Sequence as InSequence

HOOKS = (
    "process_input",
    "process_input_step",
    "process_llm_request",
    "process_output_stream",
    "process_llm_response",
    "process_api_error",
    "process_output_step",
    "process_tool_call",
    "process_tool_result",
    "process_output_result",
)
MODES = ("generate", "stream")
DOES = (
    "no change",
    "edit",
    "foreign result",
    "exception",
    "abort",
    "abort with retry",
    "retries used up",
    "provider error",
)
STEPS = (0, 1)
PLACES = ("list", "processors", "sequence", "branch")

ERROR_LIST = ("process_api_error",)
INPUT_LIST = ("process_input", "process_input_step", "process_llm_request", "process_llm_response")

RETRIES = 1
"""``max_processor_retries`` of every run."""


@dataclass(frozen=True)
class Case:
    """One cell. ``step``: where the hook acts: the first step, or the one after a tool step."""

    hook: str
    mode: str
    does: str
    step: int
    place: str

    def __str__(self) -> str:
        where = "first-step" if self.step == 0 else "after-tools"
        return "-".join([self.hook, self.mode, self.does.replace(" ", "_"), where, self.place])


def impossible(hook: str, does: str, step: int) -> str | None:
    """Why a cell cannot occur; None where it can."""
    if hook == "process_input" and step == 1:
        return "process_input runs once, before the first step"
    if hook == "process_llm_response" and does == "edit":
        return "process_llm_response only observes: what it returns is a foreign result"
    return None


def cells() -> tuple[list[Case], dict[tuple[str, str, int], str]]:
    """The cases, and the cells that cannot occur with the reason."""
    left_out = {
        cell: reason for cell in product(HOOKS, DOES, STEPS) if (reason := impossible(cell[0], cell[1], cell[2]))
    }
    cases = [
        Case(hook, mode, does, step, place)
        for hook, mode, does, step, place in product(HOOKS, MODES, DOES, STEPS, PLACES)
        if (hook, does, step) not in left_out
    ]
    return cases, left_out


def counted() -> str:
    """One line for the end of a test run."""
    cases, left_out = cells()
    return (
        f"{len(cases)} cases: {len(HOOKS)} hooks x {len(MODES)} modes x {len(DOES)} outcomes x {len(STEPS)} steps x "
        f"{len(PLACES)} places, less {len(left_out)} cells that cannot occur"
    )


# --- what the processor does ------------------------------------------------------------------------------


class Actor(Processor[Any]):
    """Does one thing in one hook at one step, and notes when it was asked there."""

    id = "actor"

    def __init__(self, case: Case) -> None:
        self._case = case
        self.asked = 0

    def handles(self, hook: str) -> bool:
        return hook == self._case.hook

    def act(self, args: Any) -> Any:
        case = self._case
        stream = case.hook == "process_output_stream"
        quiet = args.part if stream else None
        if getattr(args, "step_number", None) not in (None, case.step) and not stream:
            return quiet
        if stream and not self._is_answer(args):
            return quiet
        if case.hook == "process_output_result" and len(args.result.steps) != case.step + 1:
            return quiet
        self.asked += 1
        match case.does:
            case "no change" | "provider error":
                return quiet
            case "edit":
                return EDITS[case.hook](args)
            case "foreign result":
                return FOREIGN[case.hook]
            case "exception":
                raise ValueError("broken")
            case "abort":
                args.abort("not this", metadata={"rule": 7})
            case "abort with retry":
                if self.asked == 1:
                    args.abort("try again", retry=True)
                return quiet
            case _:
                args.abort("try again", retry=True)

    def _is_answer(self, args: Any) -> bool:
        """A piece of text of the step in question."""
        text = getattr(getattr(args.part, "payload", None), "text", None)
        return args.part.type == "text-delta" and text == said(self._case.step)

    def _hook(self, args: Any) -> Any:
        return self.act(args)

    process_input = _hook
    process_input_step = _hook
    process_llm_request = _hook
    process_output_stream = _hook
    process_llm_response = _hook
    process_api_error = _hook
    process_output_step = _hook
    process_tool_call = _hook
    process_tool_result = _hook
    process_output_result = _hook


def said(step: int) -> str:
    """What the model says at a step: it is unlike everything else."""
    return f"said-{step}"


def _edit_text(messages: Sequence[Message]) -> list[Message]:
    for part in messages[-1].parts:
        if isinstance(part, TextPart):
            part.text = f"edited-{part.text}"
    return list(messages)


def _edit_prompt(args: Any) -> Prompt:
    return Prompt(messages=[*args.prompt, PromptMessage(role="user", parts=[TextPart(text="edited-prompt")])])


def _edit_chunk(args: Any) -> TextDelta:
    return TextDelta(payload=TextPayload(text=f"edited-{args.part.payload.text}", id=args.part.payload.id))


EDITS: dict[str, Any] = {
    "process_input": lambda args: _edit_text(args.messages),
    "process_input_step": lambda args: {"system_messages": ["edited-system"]},
    "process_llm_request": _edit_prompt,
    "process_output_stream": _edit_chunk,
    "process_api_error": lambda args: {"retry": True},
    "process_output_step": lambda args: _edit_text(args.messages),
    "process_tool_call": lambda args: {"args": {"city": "edited-city"}},
    "process_tool_result": lambda args: {"result": "edited-result"},
    "process_output_result": lambda args: _edit_text(args.messages),
}

FOREIGN: dict[str, Any] = {
    "process_input": MessageList(),
    "process_input_step": MessageList(),
    "process_llm_request": 42,
    "process_output_stream": "text",
    "process_llm_response": "text",
    "process_api_error": True,
    "process_output_step": MessageList(),
    "process_tool_call": "text",
    "process_tool_result": ["text"],
    "process_output_result": MessageList(),
}


class Other(Processor[Any]):
    """Does nothing: what stands beside the actor in a composition."""

    id = "other"

    def process_api_error(self, args: Any) -> None: ...


def placed(case: Case, actor: Actor) -> dict[str, Any]:
    """The agent's options that put the actor in its place."""
    name = (
        "error_processors"
        if case.hook in ERROR_LIST
        else "input_processors"
        if case.hook in INPUT_LIST
        else "output_processors"
    )
    match case.place:
        case "processors":
            return {"processors": [actor]}
        case "sequence":
            return {name: [InSequence(Other(), InSequence(actor, id="inner"))]}
        case "branch":
            return {name: [Branch((lambda args: False, Other()), default=actor)]}
        case _:
            return {name: [actor]}
