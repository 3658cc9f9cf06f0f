"""The result of a run, including blocked, cancelled and failed runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal

from typing_extensions import TypeVar

from diarist.chunks import FinishReason, TripwireChunk, TripwirePayload, Usage
from diarist.encoding import shortened
from diarist.exceptions import BlockedError, ProcessorAbort
from diarist.messages import Json, Message, ToolPart, copy_message
from diarist.notebook import table
from diarist.processors.base import StepResult
from diarist.prompt_cache import MemoryReport

OutputT = TypeVar("OutputT", default=Any)
_NO_OUTPUT: Any = None

StoppedBy = Literal["answer", "max_steps", "stop_when", "tripwire", "error", "cancelled", "client_tool", "approval"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tripwire:
    """The reason a run was blocked, with the processor and the hook.

    ``retry`` is True if the processor asked for another attempt, but no attempt was left.
    """

    reason: str
    processor_id: str
    hook: str
    metadata: Json = None
    retry: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A rejected attempt at a step; it is in no prompt and in no storage.

    ``text`` is the text that had passed the stream hooks, without a chunk that a hook refused.
    """

    step_number: int
    text: str
    reason: str
    processor_id: str
    usage: Usage


@dataclass(slots=True, kw_only=True, repr=False)
class AgentResult(Generic[OutputT]):
    """A finished run. The type parameter is the type of ``output``.

    Attributes:
        text: The final step's text; empty when blocked.
        output: The validated value of ``output_type``; plain JSON if a processor set a schema for the last step. None
            without a schema, and if the run has no answer (``stopped_by`` is not ``"answer"``).
        has_output: True if ``output`` is the answer's value, which may be None.
        steps: Every finished step, with its own text, tool calls and usage; in a cancelled run also the step that
            was running tools.
        usage: Tokens of all model calls, including rejected attempts and calls of processors. Memory's tokens are in
            its ``data-om-…`` chunks instead. ``cached_tokens`` were read from the provider's cache.
        finish_reason: Why the model stopped; ``other`` when blocked.
        stopped_by: Why the run ended. ``max_steps``: the model wanted to take another step.
        messages: Messages that the run added to the conversation, after all processors.
        rejected: Attempts that a processor rejected.
        pending: Tool calls that wait for approval (``agent.resume``) or for a client's result.
        memory: Memory's report on the run. ``memory.cache`` has, per model call, the share of the prompt that repeats
            the previous prompt.
    """

    run_id: str
    thread_id: str | None = None
    resource_id: str | None = None
    text: str = ""
    output: OutputT = _NO_OUTPUT
    has_output: bool = False
    steps: list[StepResult] = field(default_factory=list[StepResult])
    usage: Usage = field(default_factory=Usage)
    finish_reason: FinishReason = "other"
    stopped_by: StoppedBy = "answer"
    tripwire: Tripwire | None = None
    messages: list[Message] = field(default_factory=list[Message])
    rejected: list[Rejected] = field(default_factory=list[Rejected])
    pending: list[ToolPart] = field(default_factory=list[ToolPart])
    memory: MemoryReport = field(default_factory=MemoryReport)
    _conversation: Sequence[Message] = field(default=(), repr=False)

    def __repr__(self) -> str:
        shown = [f"text={shortened(self.text)}", f"stopped_by={self.stopped_by!r}"]
        if self.output is not None:
            shown.insert(1, f"output={shortened(self.output)}")
        if self.tripwire is not None:
            shown.append(f"reason={shortened(self.tripwire.reason)}")
        tokens = f"tokens={self.usage.total_tokens}"
        return f"AgentResult({', '.join(shown)}, steps={len(self.steps)}, {tokens}, run_id={self.run_id!r})"

    def _repr_html_(self) -> str:
        """Return the steps as a table, for notebooks."""
        used = self.usage
        sent = f"{used.input_tokens:,} tokens sent ({used.cached_tokens:,} from the cache)"
        caption = f"Run {self.run_id}: {self.stopped_by}, {sent}, {used.output_tokens:,} received"
        if self.tripwire is not None:
            caption += f". Blocked by {self.tripwire.processor_id}: {self.tripwire.reason}"
        rows = [
            (
                step.step_number,
                step.model,
                f"{step.usage.input_tokens:,} + {step.usage.output_tokens:,}",
                "\n".join(str(call) for call in step.tool_calls),
                step.text,
            )
            for step in self.steps
        ]
        return table(caption, ("step", "model", "tokens", "tool calls", "text"), rows)

    @property
    def conversation(self) -> list[Message]:
        """Return copies of all messages that the run ended with, for ``agent.resume`` without memory."""
        return list(map(copy_message, self._conversation))

    def end_with(self, conversation: Sequence[Message]) -> None:
        """Set the messages that the run ended with."""
        self._conversation = conversation

    def raise_for_tripwire(self) -> None:
        """Raise BlockedError if a processor blocked the run; a blocked result has an empty text."""
        if self.tripwire is not None:
            raise BlockedError(
                self.tripwire.reason, processor_id=self.tripwire.processor_id, metadata=self.tripwire.metadata
            )


def mark_blocked(result: AgentResult[Any], abort: ProcessorAbort) -> TripwireChunk:
    """Clear the result of a blocked run except for the reason, and return the tripwire chunk."""
    result.text, result.output, result.has_output = "", None, False
    result.messages, result.pending = [], []
    result.end_with(())
    result.stopped_by, result.finish_reason = "tripwire", "other"
    result.tripwire = Tripwire(
        reason=abort.reason,
        processor_id=abort.processor_id,
        hook=abort.hook,
        metadata=abort.metadata,
        retry=abort.retry,
    )
    return TripwireChunk(
        payload=TripwirePayload(
            reason=abort.reason, processor_id=abort.processor_id, retry=abort.retry, metadata=abort.metadata
        )
    )


def mark_unfinished(result: AgentResult[Any], stopped_by: Literal["error", "cancelled"]) -> None:
    """Set the result of a failed or cancelled run: its finished steps."""
    result.stopped_by = stopped_by
    result.finish_reason = "error" if stopped_by == "error" else "other"
    result.messages = [message for step in result.steps for message in step.messages]
    result.output, result.has_output = None, False
