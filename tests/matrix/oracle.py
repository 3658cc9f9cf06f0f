"""What has to come out of each cell, told without looking at the implementation.

The run is a script of phases, one after the other; the hook under test stands at one of them. What has
happened before it is known, and what happens after it follows from the outcome.

A step: ``input_step``, ``request``, model call with ``stream`` and ``response``, ``output_step``, then either
its tools (``tool_call``, the tools, ``tool_result``) or the run's end (``output_result``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.matrix.cases import RETRIES, Case, said

BEFORE_MODEL = ("process_input", "process_input_step", "process_llm_request")
TOOL_HOOKS = ("process_tool_call", "process_tool_result")


@dataclass
class Expected:
    """The outcome of a run.

    Attributes:
        ends: How: ``answer``, ``tripwire``, or ``error``.
        error: Class name of the error that the caller gets.
        tripwire: (retry, metadata).
        rejected: (step, text) of each rejected attempt.
        calls: Model calls, failed ones included.
        answered: Model calls that answered to the end, so that their usage is known.
        tools: Arguments of each tool call that ran.
        rows: (role, text, result) of what is stored.
        step_finishes: Reasons of the step-finish chunks.
        last: Type of the last chunk.
        streamed: All text in the stream.
        asked: How often the hook was asked at its step.
        feedback: Numbers of the model calls that carried feedback.
    """

    ends: str
    error: str | None = None
    tripwire: tuple[bool, object] | None = None
    text: str = ""
    steps: int = 0
    rejected: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    calls: int = 0
    answered: int = 0
    tools: list[str] = field(default_factory=list[str])
    rows: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    step_finishes: list[str] = field(default_factory=list[str])
    last: str = "finish"
    streamed: str = ""
    asked: int = 0
    feedback: list[int] = field(default_factory=list[int])


def uses_tool(case: Case, step: int) -> bool:
    """Whether the model calls a tool at this step.

    A tool hook acts at ``case.step``, so there must be a call there; any other hook acts at an answer.
    """
    return step < last_step(case)


def last_step(case: Case) -> int:
    return case.step + 1 if case.hook in TOOL_HOOKS else case.step


def expected(case: Case) -> Expected:
    edit = case.does == "edit"
    ends = _ending(case)
    attempts = 1 + (RETRIES if ends.retried else 0)
    out = Expected(ends=ends.how, error=ends.error, tripwire=ends.tripwire, asked=_asked(case))
    user = "edited-hello" if edit and case.hook == "process_input" else "hello"
    steps_done = 0
    for step in range(last_step(case) + 1):
        here = step == case.step
        tries = attempts if here else 1
        for attempt in range(tries):
            rejected = here and attempt < tries - 1
            stops_here = here and not rejected and ends.how != "answer"
            whole, began = _model_answers(case, step, attempt, rejected or stops_here)
            if began:
                if attempt > 0 and ends.feedback:
                    out.feedback.append(out.calls)
                out.calls += 1
            if whole:
                out.answered += 1
            streams = _streams_text(case, step, rejected or stops_here, began)
            if streams:
                out.streamed += _as_streamed(case, step)
            if rejected:
                out.step_finishes += ["retry"] * began  # before the model's call, there is no step-start to end
                if ends.feedback:
                    out.rejected.append((step, said(step) if streams else ""))
            if stops_here:
                if case.hook == "process_tool_result" and case.does != "provider error":
                    out.tools.append("Rome")
                return _stopped(out, case, user, steps_done)
        if uses_tool(case, step):
            changed = here and edit and case.hook == "process_tool_call"
            out.tools.append("edited-city" if changed else "Rome")
            out.step_finishes.append("tool-calls")
        else:
            out.step_finishes.append("stop")
        steps_done += 1
    out.text = _as_kept(case, last_step(case))
    out.steps = steps_done
    out.rows = [("user", user, ""), *(_row(case, step) for step in range(steps_done))]
    return out


@dataclass
class _Ending:
    how: str
    error: str | None = None
    tripwire: tuple[bool, object] | None = None
    retried: bool = False
    feedback: bool = False
    """The retry was asked for with a reason, which the next prompt carries."""


def _ending(case: Case) -> _Ending:
    """The outcome table."""
    match case.does:
        case "provider error":
            return _Ending("error", "RuntimeError")
        case "no change" if case.hook == "process_api_error":
            return _Ending("error", "RuntimeError")
        case "edit" if case.hook == "process_api_error":
            return _Ending("answer", retried=True)
        case "no change" | "edit":
            return _Ending("answer")
        case "foreign result":
            return _Ending("error", "ProcessorResultError")
        case "exception":
            return _Ending("error", "ProcessorError")
        case "abort":
            return _Ending("tripwire", tripwire=(False, {"rule": 7}))
        case _ if case.hook == "process_tool_result":
            return _Ending("error", "ProcessorResultError")
        case _ if case.hook == "process_input":
            return _Ending("tripwire", tripwire=(True, None))
        case "abort with retry":
            return _Ending("answer", retried=True, feedback=True)
        case _:
            return _Ending("tripwire", tripwire=(True, None), retried=True, feedback=True)


def _asked(case: Case) -> int:
    """How often the hook is asked at its step."""
    fails = case.does == "provider error"
    if case.hook == "process_api_error":
        return 2 if case.does == "retries used up" else 1
    if fails:
        return 1 if case.hook in (*BEFORE_MODEL, "process_output_stream") else 0  # the call fails after some text
    if case.does in ("abort with retry", "retries used up") and case.hook not in (
        "process_input",
        "process_tool_result",
    ):
        return 2
    return 1


def _model_answers(case: Case, step: int, attempt: int, cut: bool) -> tuple[bool, bool]:
    """Whether the model's call of this attempt is answered to its end, and whether there is one."""
    if step != case.step:
        return True, True
    if case.does == "provider error":
        return False, True
    if case.hook == "process_api_error":
        failing = case.does not in ("edit", "abort with retry") or attempt == 0
        return not failing, True
    if not cut:
        return True, True
    if case.hook in BEFORE_MODEL:
        return False, False
    return case.hook != "process_output_stream", True


def _streams_text(case: Case, step: int, cut: bool, began: bool) -> bool:
    """Whether the text of this attempt reaches the client: it was let through before the hook stood in the way."""
    if not began:
        return False
    stopped_there = case.hook == "process_output_stream" and case.does != "provider error"
    return not (cut and step == case.step and stopped_there)


def _as_streamed(case: Case, step: int) -> str:
    edited = case.does == "edit" and case.hook == "process_output_stream" and step == case.step
    return f"edited-{said(step)}" if edited else said(step)


def _as_kept(case: Case, step: int) -> str:
    edits = ("process_output_stream", "process_output_step", "process_output_result")
    edited = case.does == "edit" and case.hook in edits and step == case.step
    return f"edited-{said(step)}" if edited else said(step)


def _row(case: Case, step: int) -> tuple[str, str, str]:
    result = ""
    if uses_tool(case, step):
        result = "sunny in Rome"
        if case.does == "edit" and step == case.step and case.hook == "process_tool_call":
            result = "sunny in edited-city"
        if case.does == "edit" and step == case.step and case.hook == "process_tool_result":
            result = "edited-result"
    return ("assistant", _as_kept(case, step), result)


def _stopped(out: Expected, case: Case, user: str, steps_done: int) -> Expected:
    """The run ended at the hook: what is kept of it."""
    out.steps = steps_done
    out.last = "tripwire" if out.ends == "tripwire" else "error"
    if out.ends == "tripwire":
        return out  # nothing of the run is stored
    if case.hook == "process_input" and case.does != "provider error":
        return out  # it broke off before the question was stored
    # Of a run whose output somebody judges at its end, only the question is kept.
    judged = case.hook == "process_output_result"
    rows = 0 if judged else steps_done
    out.rows = [("user", user, ""), *(_row(case, step) for step in range(rows))]
    return out
