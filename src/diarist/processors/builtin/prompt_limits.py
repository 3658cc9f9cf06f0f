"""Keep the prompt short: limit its tokens, and remove tool calls of earlier runs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from diarist.checks import check_by_type, has_methods, positive, text_list, whole
from diarist.chunks import StepStart, TextDelta
from diarist.exceptions import ConfigError
from diarist.message_list import MessageList
from diarist.messages import (
    FilePart,
    Prompt,
    PromptMessage,
    PromptPart,
    ReasoningPart,
    ToolCallPart,
    ToolResultPart,
    as_text,
)
from diarist.processors.base import DROP, ProcessLLMRequestArgs, Processor, ProcessOutputStreamArgs, StreamHookResult
from diarist.tokens import TokenCounter, count_image, counter_for

# -- units: messages that must be kept or removed together


@dataclass(slots=True)
class Unit:
    """The prompt messages of one message of the conversation, with the results of its tool calls.

    Attributes:
        fixed: True if the message belongs to the current run, or the run has a result of its calls: one that the client
            sent, or one of an approved call.
        tokens: Tokens of the prompt messages.
    """

    messages: list[PromptMessage] = field(default_factory=list[PromptMessage])
    fixed: bool = False
    tokens: int = 0

    @property
    def opens_turn(self) -> bool:
        return self.messages[0].role == "user"


def split(prompt: Prompt, messages: MessageList, count: Callable[[PromptMessage], int]) -> tuple[int, list[Unit]]:
    """Return the tokens of the system messages, and the other messages as units, in order."""
    system = 0
    units: list[Unit] = []
    by_message: dict[str, Unit] = {}
    by_call: dict[str, Unit] = {}  # by call id, the newest: some models use the same ids in each run
    for message in prompt:
        tokens = count(message)
        if message.role == "system":
            system += tokens
            continue
        unit = by_message.get(message.message_id or "")
        if unit is None:
            results = (part for part in message.parts if isinstance(part, ToolResultPart))
            unit = next((by_call[part.call_id] for part in results if part.call_id in by_call), None)
        if unit is None:
            unit = Unit()
            units.append(unit)
        unit.messages.append(message)
        unit.tokens += tokens
        is_history = message.message_id is not None and messages.origin_of(message.message_id) == "memory"
        unit.fixed |= not is_history
        if message.message_id is not None:
            by_message[message.message_id] = unit
        by_call |= {part.call_id: unit for part in message.parts if isinstance(part, ToolCallPart)}
    results = [message for message in messages.of("input", "response") if message.role == "tool"]
    answered = {part.call_id for message in results for part in message.tool_parts}
    for call_id in answered & by_call.keys():
        by_call[call_id].fixed = True
    return system, units


# -- the limit of tokens

TARGET = 0.7
"""Share of the space for history that is kept when the window is cut. If it were cut to the limit itself, the beginning
of the prompt would change with every call, and the provider's cache would never match."""

_SETTLED = 400
"""Number of characters after which a text's token count is final; the count is not computed again."""


@dataclass(slots=True)
class _State:
    """State of one run: token counts by text, and the current step's answer.

    ``settled`` counts the tokens of the answer's beginning, ``text`` is the rest, and ``cut`` is True after the limit.
    """

    counts: dict[str, int] = field(default_factory=dict[str, int])
    settled: int = 0
    text: str = ""
    cut: bool = False


@dataclass(kw_only=True, eq=False, repr=False)
class TokenLimiter(Processor[Any, _State]):
    """Keeps the prompt under a number of tokens by removing old messages. Put it last in ``input_processors``.

    Only the prompt is trimmed, never the storage. Messages of the current run always stay. A tool call and its result
    stay or are removed together. If system messages and the current run alone exceed the limit, the run is blocked,
    with the numbers in ``tripwire.metadata`` (``limit``, ``system``, ``run``).

    The window is cut rarely: a conversation over the limit is cut to 70 % of the space for history, and keeps
    its beginning until it reaches the limit again, so that consecutive prompts share a prefix that the provider can
    cache. The cuts are found by replaying the conversation message by message, so every process finds the same cuts
    without storing them. The window begins with a user message if possible. If memory limits history itself
    (``last_messages``), let it load more than the limit.

    Args:
        limit: Tokens of system messages and conversation; tool definitions are not counted.
        encoding: ``"o200k_base"`` (default, part of diarist), another encoding that ``tiktoken`` knows, such as
            ``"cl100k_base"`` (downloaded when the limiter is made, unless ``TIKTOKEN_CACHE_DIR`` holds it), or a
            ``TokenCounter``.
        trim: How the messages to keep are selected, from new to old. ``"best-fit"`` (default) skips messages that do
            not fit, such as one huge tool result; ``"contiguous"`` stops at the first message that does not fit.
        output_limit: Tokens of text in one step's answer; put the limiter into ``processors`` then. Default: no limit.
        output_strategy: ``"truncate"`` (default) drops the text beyond the limit; ``"abort"`` blocks the run.

    Example::

        Agent(model="openai/gpt-5-mini", memory=Memory(), input_processors=[TokenLimiter(100_000)])
    """

    edits_in_place = False

    limit: int = field(kw_only=False)
    encoding: str | TokenCounter = "o200k_base"
    trim: Literal["best-fit", "contiguous"] = "best-fit"
    output_limit: int | None = None
    output_strategy: Literal["truncate", "abort"] = "truncate"

    def __post_init__(self) -> None:
        positive("TokenLimiter", "limit", self.limit)
        check_by_type(self)
        if self.output_limit is not None:
            positive("TokenLimiter", "output_limit", self.output_limit)
            self.output_option = "output_limit"
        try:
            self._counter = counter_for(self.encoding) if isinstance(self.encoding, str) else self.encoding
        except ConfigError as error:
            raise ConfigError(f"TokenLimiter: {error}") from error
        has_methods("TokenLimiter", "encoding", self._counter, "count")

    def create_state(self) -> _State:
        return _State()

    # -- the prompt

    def process_llm_request(self, args: ProcessLLMRequestArgs[Any, _State]) -> Prompt | None:
        """Remove old messages from the prompt, or block the run if that is not enough."""
        state = args.state
        system, units = split(args.prompt, args.message_list, lambda message: self._tokens(message, state))
        run = sum(unit.tokens for unit in units if unit.fixed)
        if system + run > self.limit:
            args.abort(
                f"the prompt is too long: system messages have {system} tokens and the current run {run}, "
                f"together more than {self.limit}",
                metadata={"limit": self.limit, "system": system, "run": run},
            )
        if system + sum(unit.tokens for unit in units) <= self.limit:
            return None
        window, total = list[Unit](), system
        for unit in units:
            window.append(unit)
            total += unit.tokens
            if total > self.limit:
                window = self._cut(system, window)
                total = system + sum(unit.tokens for unit in window)
        kept = [message for unit in window for message in unit.messages]
        return Prompt(messages=[*(message for message in args.prompt if message.role == "system"), *kept])

    def _cut(self, system: int, units: list[Unit]) -> list[Unit]:
        """Return the units to keep when the window exceeds the limit: the last turn, and earlier units that fit.

        The first time that this cut was made, the last turn was the current run, so every replay must keep it, too.
        """
        last_turn = max((index for index, unit in enumerate(units) if unit.opens_turn), default=len(units))
        stays = [unit.fixed or index >= last_turn for index, unit in enumerate(units)]
        room = self.limit - system - sum(unit.tokens for unit, stay in zip(units, stays, strict=True) if stay)
        if room < 0:  # the last turn does not fit
            stays = [unit.fixed for unit in units]
            room = self.limit - system - sum(unit.tokens for unit in units if unit.fixed)
        left = int(room * TARGET)
        for index in reversed(range(len(units))):
            if stays[index]:
                continue
            if units[index].tokens <= left:
                left -= units[index].tokens
                stays[index] = True
            elif self.trim == "contiguous":
                break
        for index, unit in enumerate(units):  # drop an earlier question if all its answers are dropped
            if unit.opens_turn and not unit.fixed:
                next_turn = next((i for i in range(index + 1, len(units)) if units[i].opens_turn), len(units))
                answers = stays[index + 1 : next_turn]
                if answers and not any(answers):
                    stays[index] = False
        kept = [unit for unit, stay in zip(units, stays, strict=True) if stay]
        while kept and not kept[0].fixed and not kept[0].opens_turn and any(unit.opens_turn for unit in kept):
            kept.pop(0)
        return kept

    def _tokens(self, message: PromptMessage, state: _State) -> int:
        total = 0
        for part in message.parts:
            if isinstance(part, FilePart):
                total += count_image(None, None)
                continue
            text = f"{part.name}\n{as_text(part.args)}" if isinstance(part, ToolCallPart) else part.text
            if text not in state.counts:
                state.counts[text] = self._counter.count(text)
            total += state.counts[text]
        return total

    # -- the answer

    def process_output_stream(self, args: ProcessOutputStreamArgs[Any, _State]) -> StreamHookResult:
        """Count the step's text, and truncate it at ``output_limit``."""
        part, state, limit = args.part, args.state, self.output_limit
        if limit is None:
            return part
        if isinstance(part, StepStart):
            state.settled, state.text, state.cut = 0, "", False
        if not isinstance(part, TextDelta):
            return part
        if state.cut:
            return DROP
        before, state.text = state.text, state.text + part.payload.text
        tokens = self._counter.count(state.text)
        if state.settled + tokens <= limit:
            if len(state.text) > _SETTLED:
                state.settled, state.text = state.settled + tokens, ""
            return part
        if self.output_strategy == "abort":
            args.abort(f"the answer is longer than {limit} tokens", metadata={"output_limit": limit})
        state.cut = True
        text, room = part.payload.text, limit - state.settled
        ends = range(len(text) + 1)
        fits = text[: bisect_right(ends, room, key=lambda end: self._counter.count(before + text[:end])) - 1]
        return replace(part, payload=replace(part.payload, text=fits)) if fits else DROP


class ToolCallFilter(Processor[Any]):
    """Removes tool calls and their results from the prompt, to save the tokens of long results.

    Only calls of earlier runs are removed, and only from the prompt, not from the storage. A call and its result are
    removed together. A message that contains nothing else is removed as well.

    Args:
        exclude: Names of tools; their calls are removed. Default: all tools.
        keep_recent: Number of newest calls that stay. Default 0. With a higher number, each new call removes an older
            one from the middle of the prompt, and the provider's cache does not match from there on.

    Example::

        Agent(model="openai/gpt-5-mini", memory=Memory(), input_processors=[ToolCallFilter(exclude=["read_page"])])
    """

    edits_in_place = False

    def __init__(self, exclude: Sequence[str] | None = None, *, keep_recent: int = 0) -> None:
        whole("ToolCallFilter", "keep_recent", keep_recent, least=0)
        self._exclude = None if exclude is None else frozenset(text_list("ToolCallFilter", "exclude", exclude))
        self._keep_recent = keep_recent

    def process_llm_request(self, args: ProcessLLMRequestArgs[Any]) -> Prompt | None:
        """Remove the calls."""
        _, units = split(args.prompt, args.message_list, lambda message: 0)
        calls = [
            (id(unit), part.call_id)
            for unit in units
            if not unit.fixed
            for message in unit.messages
            for part in message.parts
            if isinstance(part, ToolCallPart) and (self._exclude is None or part.name in self._exclude)
        ]
        # Identify calls by unit and id, since some models use the same ids in each run.
        removed = set(calls[: max(len(calls) - self._keep_recent, 0)])
        parts = {
            id(part)
            for unit in units
            for message in unit.messages
            for part in message.parts
            if isinstance(part, ToolCallPart | ToolResultPart) and (id(unit), part.call_id) in removed
        }
        return without_parts(args.prompt, lambda part: id(part) in parts)


def without_parts(prompt: Prompt, drop: Callable[[PromptPart], bool]) -> Prompt | None:
    """Return the prompt without the parts that ``drop`` selects; None if it selects none.

    Removes messages, too, if no parts or only reasoning are left. Their cache breakpoint moves to the message before.
    """
    out: list[PromptMessage] = []
    changed = False
    for message in prompt.messages:
        kept = [part for part in message.parts if not drop(part)]
        if len(kept) == len(message.parts):
            out.append(message)
            continue
        changed = True
        if all(isinstance(part, ReasoningPart) for part in kept):
            if message.cache and out:
                out[-1] = replace(out[-1], cache=True)
        else:
            out.append(replace(message, parts=kept))
    return Prompt(messages=out) if changed else None
