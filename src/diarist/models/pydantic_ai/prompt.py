"""Convert a prompt to the library's messages."""

from __future__ import annotations

from itertools import takewhile

from pydantic_ai import messages as lib

from diarist.data_urls import read_data_url
from diarist.encoding import clean, writable
from diarist.messages import (
    FilePart,
    Prompt,
    PromptMessage,
    PromptPart,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from diarist.models import provider_data

_MAX_BREAKPOINTS = 4  # Anthropic's and Bedrock's limit for one request


def to_messages(prompt: Prompt, *, system: str, breakpoints: bool) -> list[lib.ModelMessage]:
    """Return the library's messages for a prompt, with U+FFFD for lone surrogates, which providers refuse.

    Args:
        prompt: System messages first, then the turns.
        system: The library's name of the provider; provider data of other providers is left out.
        breakpoints: Put cache breakpoints into the request. If False, ``PromptMessage.cache`` is ignored. The
            breakpoint after the instructions is a setting, see ``marks_instructions``.
    """
    marked = [index for index, message in enumerate(prompt.messages) if message.cache] if breakpoints else []
    if len(marked) > _MAX_BREAKPOINTS:
        marked = [*marked[:2], *marked[-2:]]  # the stable start, and the end
    out = _Turns(system)
    leading = sum(1 for _ in takewhile(lambda message: message.role == "system", prompt.messages))
    joined = _joined_system(prompt) if breakpoints else leading
    if joined:
        text = "\n\n".join(message.text for message in prompt.messages[:joined])
        out.ask(lib.SystemPromptPart(writable(text)))
    if leading > joined:
        blocks: list[lib.UserContent] = []
        for index, message in enumerate(prompt.messages[joined:leading], start=joined):
            blocks.append(writable(message.text))
            if index in marked:
                blocks.append(lib.CachePoint())
        out.ask(lib.UserPromptPart(blocks))
    for index, message in enumerate(prompt.messages[leading:], start=leading):
        out.add(message)
        if index in marked:
            out.mark()
    return out.messages


def marks_instructions(prompt: Prompt) -> bool:
    """Return True if a breakpoint follows the joined system message."""
    joined = _joined_system(prompt)
    return joined > 0 and prompt.messages[joined - 1].cache


def _joined_system(prompt: Prompt) -> int:
    """Return the number of leading system messages to join: those up to the first breakpoint."""
    joined = 0
    for message in takewhile(lambda message: message.role == "system", prompt.messages):
        joined += 1
        if message.cache:
            break
    return joined


class _Turns:
    """Builds the library's alternating requests and responses."""

    def __init__(self, system: str) -> None:
        self._system = system
        self._turns: list[list[lib.ModelRequestPart] | lib.ModelResponse] = []

    @property
    def messages(self) -> list[lib.ModelMessage]:
        return [lib.ModelRequest(parts=turn) if isinstance(turn, list) else turn for turn in self._turns]

    def ask(self, *parts: lib.ModelRequestPart) -> None:
        """Add parts to the current request; everything between two answers is one request."""
        last = self._turns[-1] if self._turns else None
        if isinstance(last, list):
            last.extend(parts)
        elif parts:
            self._turns.append(list(parts))

    def add(self, message: PromptMessage) -> None:
        match message.role:
            case "system":
                self.ask(lib.SystemPromptPart(writable(message.text)))
            case "user":
                content: list[lib.UserContent] = []
                for part in message.parts:
                    if isinstance(part, FilePart):
                        content.append(_file(part))
                    elif isinstance(part, TextPart) and part.text:
                        content.append(writable(part.text))
                if len(content) == 1 and isinstance(content[0], str):
                    self.ask(lib.UserPromptPart(content[0]))
                elif content:
                    self.ask(lib.UserPromptPart(content))
            case "tool":
                for part in message.parts:
                    if isinstance(part, ToolResultPart):
                        outcome = "failed" if part.is_error else "success"
                        text = writable(part.text)
                        self.ask(lib.ToolReturnPart(part.name, text, tool_call_id=part.call_id, outcome=outcome))
            case "assistant":
                # OpenAI refuses an item's id if the reasoning before it is missing.
                system = self._system
                with_ids = any(isinstance(part, ReasoningPart) and part.provider == system for part in message.parts)
                found = (_answer_part(part, system, with_ids) for part in message.parts)
                if parts := [part for part in found if part is not None]:
                    own = any(part.provider_name == system for part in parts)
                    self._turns.append(lib.ModelResponse(parts=parts, provider_name=system if own else None))

    def mark(self) -> None:
        """Add a breakpoint after the last part."""
        match self._turns[-1] if self._turns else None:
            case [*_, lib.UserPromptPart(content=content)] as asked:
                before = [content] if isinstance(content, str) else list(content)
                asked[-1] = lib.UserPromptPart([*before, lib.CachePoint()])
            case list() as asked:
                asked.append(lib.UserPromptPart([lib.CachePoint()]))
            case lib.ModelResponse(parts=[*_, lib.TextPart() | lib.ToolCallPart()]):
                # A breakpoint as the first part after an answer marks the end of the answer.
                self.ask(lib.UserPromptPart([lib.CachePoint()]))
            case _:  # empty, or an answer that ends with reasoning, which takes no breakpoint
                pass


def _file(part: FilePart) -> lib.UserContent:
    if part.data is not None:
        return lib.BinaryContent(part.data, media_type=part.media_type)
    url = part.url or ""
    if embedded := read_data_url(url):
        return lib.BinaryContent(embedded[1], media_type=part.media_type)
    kinds = {"image": lib.ImageUrl, "audio": lib.AudioUrl, "video": lib.VideoUrl}
    kind = kinds.get(part.media_type.partition("/")[0], lib.DocumentUrl)
    return kind(url, media_type=part.media_type)


def _answer_part(
    part: PromptPart, system: str, with_ids: bool
) -> lib.TextPart | lib.ThinkingPart | lib.ToolCallPart | lib.NativeToolCallPart | lib.NativeToolReturnPart | None:
    match part:
        case ToolCallPart(provider_executed=True):
            return provider_data.native_call(part)
        case ToolResultPart(provider_executed=True):
            return provider_data.native_result(part)
        case TextPart(text=text) if text:
            extra = provider_data.for_part(part.provider_data, system, with_id=with_ids)
            return lib.TextPart(writable(text), **extra)
        case ReasoningPart() if part.provider == system and (part.text or part.signature):
            extra = provider_data.for_part(part.provider_data, system, with_id=True)
            return lib.ThinkingPart(
                writable(part.text),
                signature=part.signature,
                provider_name=system,
                id=extra.get("id"),
                provider_details=extra.get("provider_details"),
            )
        case ToolCallPart():
            extra = provider_data.for_part(part.provider_data, system, with_id=with_ids)
            return lib.ToolCallPart(part.name, clean(part.args), part.call_id, **extra)
        case _:
            return None
