"""Reads the content of one message: a text, or parts in the form of OpenAI or Anthropic."""

from __future__ import annotations

import mimetypes
from collections.abc import Callable, Collection

from diarist.data_urls import audio_type, decode_base64, read_data_url
from diarist.exceptions import InputError
from diarist.integrations.conversations.building import Builder
from diarist.integrations.conversations.loading import as_list, as_object, elements_of, fields_of
from diarist.messages import FilePart, Json, Part, ReasoningPart, TextPart, ToolState

IMAGES = ("image", "image_url", "input_image")
"""Types of the parts that are an image, of all providers."""

FILES = (*IMAGES, "audio", "input_audio", "video", "file", "input_file", "document", "media", "text-plain")
"""Types of the parts that are a file of any kind."""


class ContentReader:
    """Converts content to parts. Results in it (Anthropic's ``tool_result``) are added to their calls.

    Args:
        clean: Function that changes every text, including the texts of tool results.
        state: Function from the text of a failed result to the result's state; by default always ``error``.
        files: Types of parts to read as files. Other files become a placeholder.
        unknown: Called with the type of a part that becomes a placeholder; by default a note is added.
    """

    def __init__(
        self,
        builder: Builder,
        *,
        clean: Callable[[str], str] = str,
        state: Callable[[str], ToolState] = lambda _: "error",
        files: Collection[str] = IMAGES,
        unknown: Callable[[str], None] | None = None,
    ) -> None:
        self._builder, self._clean, self._state = builder, clean, state
        self._files, self._unknown = files, unknown

    def parts(self, content: Json) -> list[Part]:
        """Return the parts. Raises InputError if ``content`` is not a text, a list of parts or null."""
        if content is None:
            return []
        if isinstance(content, str):
            return self._text(content)
        blocks = as_list(content)
        if blocks is None:
            raise InputError(f"content must be a text or a list of parts, not {type(content).__name__}")
        return [part for block in blocks for part in self._block(block)]

    def result(self, content: Json) -> Json:
        """Return a tool's result: lists of parts become their text, other values stay JSON."""
        if isinstance(content, str):
            return self._clean(content)
        blocks = as_list(content)
        if not blocks or not all("type" in fields_of(block) for block in blocks):
            return "" if content is None else content
        lines: list[str] = []
        for value in blocks:
            block = fields_of(value)
            text = block.get("text")
            lines.append(self._clean(text) if isinstance(text, str) else f"[{block['type']}]")
        return "\n".join(lines)

    def _text(self, text: Json) -> list[Part]:
        cleaned = self._clean(text) if isinstance(text, str) else ""
        return [TextPart(text=cleaned)] if cleaned.strip() else []

    def _block(self, value: Json) -> list[Part]:
        if isinstance(value, str):
            return self._text(value)
        block = as_object(value)
        kind = (block or {}).get("type")
        if block is None or not isinstance(kind, str):
            raise InputError("every part of content needs a type")
        match kind:
            case "text" | "input_text" | "output_text":
                return self._text(block.get("text"))
            case "cache-point" | "flag" | "token_budget":  # of Pydantic AI and Claude.ai, without content
                return []
            case "refusal":
                return self._text(block.get("refusal"))
            case "thinking" | "reasoning":
                # The signature is left out: it is long, and of no use after the turn.
                thought = block.get("thinking") or block.get("reasoning") or block.get("text") or _summary(block)
                return [ReasoningPart(text=thought)] if isinstance(thought, str) and thought.strip() else []
            case "tool_use":
                return [self._builder.call(block.get("id"), block.get("name"), block.get("input"))]
            case "tool_result":
                result = self.result(block.get("content"))
                state: ToolState = self._state(str(result)) if block.get("is_error") else "result"
                self._builder.answer(block.get("tool_use_id"), block.get("name"), result, state)
                return []
            case _:
                file = _file(block) if kind in self._files else None
                if file is not None:
                    return [file]
                if self._unknown is not None:
                    self._unknown(kind)
                else:
                    self._builder.note(f"parts of type {kind}, kept as a placeholder")
                return [TextPart(text=f"[{kind}]")]


def has_results(content: Json) -> bool:
    """Return True for content with tool results. Such content may add no message of its own."""
    blocks = elements_of(content)
    return any(fields_of(block).get("type") == "tool_result" for block in blocks)


def _summary(block: dict[str, Json]) -> str:
    """Return the text of OpenAI's reasoning."""
    texts = (fields_of(item).get("text") for item in elements_of(block.get("summary")))
    return "\n\n".join(text for text in texts if isinstance(text, str))


def _file(block: dict[str, Json]) -> FilePart | None:
    """Return a file by URL or in base64, in the form of OpenAI, Anthropic or LangChain; None for other forms."""
    kind = str(block["type"])
    held = as_object(block.get("source")) or as_object(block.get(kind)) or block  # Anthropic's, OpenAI's
    general = {"image": "image/*", "audio": "audio/*", "video": "video/*"}
    found = next((media for name, media in general.items() if name in kind), "application/octet-stream")
    given = held.get("media_type") or held.get("mime_type")
    if kind == "text-plain":
        given = "text/plain"
    elif kind == "input_audio" and held.get("format"):
        given = audio_type(str(held["format"]))
    names = (held.get("filename"), fields_of(block.get("extras")).get("filename"), block.get("title"))
    name = next((value for value in names if isinstance(value, str)), None)
    if isinstance(text := held.get("text"), str) and kind == "text-plain":
        return FilePart(media_type="text/plain", data=text.encode("utf-8", "replace"), name=name)
    if isinstance(data := held.get("base64") or held.get("data"), str):
        decoded = decode_base64(data)
        return None if decoded is None else FilePart(media_type=str(given or found), data=decoded, name=name)
    url = held.get("url") or held.get("image_url") or held.get("file_url") or held.get("file_data")
    if not isinstance(url, str) or not url:
        return None
    if not url.startswith("data:"):
        return FilePart(media_type=str(given or mimetypes.guess_type(url)[0] or found), url=url, name=name)
    embedded = read_data_url(url)
    return None if embedded is None else FilePart(media_type=embedded[0] or found, data=embedded[1], name=name)
