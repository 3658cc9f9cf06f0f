"""A prompt, and an answer, of no more than so many tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from diarist.chunks import StepStart, TextDelta
from diarist.exceptions import ConfigError
from diarist.messages import FilePart, Prompt, PromptMessage, ToolCallPart, as_text
from diarist.processors.base import (
    DROP,
    ProcessLLMRequestArgs,
    Processor,
    ProcessOutputStreamArgs,
    StreamHookResult,
)
from diarist.processors.builtin.options import has_methods, one_of, positive
from diarist.processors.builtin.prompt_units import Unit, split
from diarist.tokens import TokenCounter, count_image, default_counter

TARGET = 0.7
"""To what part of the room for history a window is cut that has outgrown it. Cutting to the limit itself would
move the beginning of the prompt at every call, and the provider's cache would never find its prefix again."""

_SETTLED = 400
"""Characters of an answer after which the count of what was said is not repeated."""


@dataclass(slots=True)
class _State:
    """One run: token counts of texts seen, the window last sent, and the answer so far."""

    counts: dict[str, int] = field(default_factory=dict[str, int])
    window: frozenset[str | None] | None = None
    said: int = 0
    text: str = ""
    cut: bool = False


class TokenLimiter(Processor[Any, _State]):
    """Keeps the prompt under a number of tokens by leaving out old messages. Put it last in ``input_processors``.

    Only the prompt is trimmed, never what is stored. The current run's messages always stay, and a tool call
    stays or goes together with its result; where system messages and the current run alone are more than the
    limit, the run is blocked with the numbers in ``tripwire.metadata`` (``limit``, ``system``, ``run``).

    The window moves in hops. A conversation that has outgrown the limit is cut back to 70 % of the room for
    history, and then keeps its beginning while it grows to the limit again, so that consecutive prompts share
    their prefix and a provider's cache can use it. Where to cut is found by replaying the conversation message by
    message, so that each call, in any process, comes to the same places without storing any. It begins with a user
    message where there is one. Within a run the window of the step before stays as long as it fits. A memory that
    moves its own window at every call (``last_messages``) should bring more than fits, or the hops are its.

    Args:
        limit: Tokens of system messages and conversation; definitions of tools are not counted.
        encoding: ``"o200k_base"`` (default, offline), another encoding that ``tiktoken`` knows (which may have to
            fetch it), or a ``TokenCounter``.
        trim: What stays at a hop. ``"best-fit"`` (default) goes from new to old and leaves out what does not fit,
            such as one huge tool result; ``"contiguous"`` stops there, so that nothing is missing in between.
        output_limit: Tokens of text in one step's answer. Default: no limit. For it, put the limiter into
            ``output_processors`` as well.
        output_strategy: ``"truncate"`` (default) drops the text beyond the limit; ``"abort"`` blocks the run.

    Raises:
        ConfigError: A limit that is not positive, an unknown encoding, trim or output_strategy.

    Example::

        Agent(model="openai/gpt-5-mini", memory=Memory(), input_processors=[TokenLimiter(100_000)])
    """

    edits_in_place = False

    def __init__(
        self,
        limit: int,
        *,
        encoding: str | TokenCounter = "o200k_base",
        trim: Literal["best-fit", "contiguous"] = "best-fit",
        output_limit: int | None = None,
        output_strategy: Literal["truncate", "abort"] = "truncate",
    ) -> None:
        positive("TokenLimiter", "limit", limit)
        one_of("TokenLimiter", "trim", trim, ("best-fit", "contiguous"))
        one_of("TokenLimiter", "output_strategy", output_strategy, ("truncate", "abort"))
        if output_limit is not None:
            positive("TokenLimiter", "output_limit", output_limit)
        self.limit = limit
        self._counter = _counter(encoding)
        self._contiguous = trim == "contiguous"
        self._output_limit = output_limit
        self._aborts = output_strategy == "abort"

    def create_state(self) -> _State:
        return _State()

    # -- the prompt

    def process_llm_request(self, args: ProcessLLMRequestArgs[Any, _State]) -> Prompt | None:
        """Leave out old messages; blocks where that does not help."""
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
        window = self._window(system, units, state)
        state.window = frozenset(unit.id for unit in window if not unit.fixed)
        kept = [message for unit in window for message in unit.messages]
        return Prompt(messages=[*(message for message in args.prompt if message.role == "system"), *kept])

    def _window(self, system: int, units: Sequence[Unit], state: _State) -> list[Unit]:
        if state.window is not None:
            same = [unit for unit in units if unit.fixed or unit.id in state.window]
            if system + sum(unit.tokens for unit in same) <= self.limit:
                return same
        kept: list[Unit] = []
        total = system
        for unit in units:
            kept.append(unit)
            total += unit.tokens
            if total > self.limit:
                kept = self._hop(system, kept)
                total = system + sum(unit.tokens for unit in kept)
        return kept

    def _hop(self, system: int, units: list[Unit]) -> list[Unit]:
        """What stays of a window that has outgrown the limit: the turn that is going on, and what fits before it.

        A turn that is history now was the current run when this hop happened first, so it is spared here as it
        was then.
        """
        turn = max((i for i, unit in enumerate(units) if unit.opens_turn), default=len(units))
        stays = [unit.fixed or i >= turn for i, unit in enumerate(units)]
        room = self.limit - system - sum(unit.tokens for unit, stay in zip(units, stays, strict=True) if stay)
        if room < 0:  # a turn of the past that was too long for its own run
            stays = [unit.fixed for unit in units]
            room = self.limit - system - sum(unit.tokens for unit in units if unit.fixed)
        left = int(room * TARGET)
        for i in range(len(units) - 1, -1, -1):
            if stays[i]:
                continue
            if units[i].tokens <= left:
                left -= units[i].tokens
                stays[i] = True
            elif self._contiguous:
                break
        kept = [unit for i, unit in enumerate(units) if stays[i] and not _lost_its_answer(units, stays, i)]
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
        """Count the step's text, and end it at ``output_limit``."""
        part, state, limit = args.part, args.state, self._output_limit
        if limit is None:
            return part
        if isinstance(part, StepStart):
            state.said, state.text, state.cut = 0, "", False
        if not isinstance(part, TextDelta):
            return part
        if state.cut:
            return DROP
        before, state.text = state.text, state.text + part.payload.text
        tokens = self._counter.count(state.text)
        if state.said + tokens <= limit:
            if len(state.text) > _SETTLED:
                state.said, state.text = state.said + tokens, ""
            return part
        if self._aborts:
            args.abort(f"the answer is longer than {limit} tokens", metadata={"output_limit": limit})
        state.cut = True
        fits = self._fitting(before, part.payload.text, limit - state.said)
        return replace(part, payload=replace(part.payload, text=fits)) if fits else DROP

    def _fitting(self, before: str, text: str, tokens: int) -> str:
        """As much of ``text`` as fits after ``before``; a token more or less at a cut inside a word is possible."""
        low, high = 0, len(text)
        while low < high:
            middle = (low + high + 1) // 2
            if self._counter.count(before + text[:middle]) <= tokens:
                low = middle
            else:
                high = middle - 1
        return text[:low]


def _lost_its_answer(units: Sequence[Unit], stays: Sequence[bool], index: int) -> bool:
    """Whether a question of the past would stand alone, all that followed in its turn being left out."""
    if units[index].fixed or not units[index].opens_turn:
        return False
    end = next((i for i in range(index + 1, len(units)) if units[i].opens_turn), len(units))
    return end > index + 1 and not any(stays[index + 1 : end])


@dataclass(slots=True)
class _Tiktoken:
    """Another encoding of ``tiktoken``'s."""

    name: str

    def count(self, text: str) -> int:
        import tiktoken

        return len(tiktoken.get_encoding(self.name).encode_ordinary(text))


def _counter(encoding: str | TokenCounter) -> TokenCounter:
    if not isinstance(encoding, str):
        has_methods("TokenLimiter", "encoding", encoding, "count")
        return encoding
    if encoding == default_counter().name:
        return default_counter()
    import tiktoken

    known = tiktoken.list_encoding_names()
    if encoding not in known:
        raise ConfigError(f"TokenLimiter: encoding {encoding!r} is unknown; known: {', '.join(sorted(known))}")
    return _Tiktoken(encoding)
