"""What a conformance test has to know of a protocol: how to reach it, and where things stand in a body."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Literal

from diarist.models import Model, resolve
from diarist.models.resolve import Client
from tests.loopback.anthropic_server import AnthropicServer
from tests.loopback.google_server import GoogleServer
from tests.loopback.openai_server import OpenAIServer
from tests.loopback.server import LoopbackServer

PNG = b"\x89PNG\r\n\x1a\nnot really"
PNG_URL = "data:image/png;base64,iVBORw0KGgpub3QgcmVhbGx5"


@dataclass(kw_only=True)
class Sent:
    """One message of a request, without the protocol's wrapping."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str = ""
    images: list[str] = field(default_factory=list[str])
    calls: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    """Id, name, arguments as JSON."""
    results: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Id and text."""


class Wire(ABC):
    """One protocol at a loopback server."""

    server: LoopbackServer
    overflow: tuple[str, str]
    """Code and message of a 400 for a prompt that is too long."""
    signs_reasoning = True
    makes: str
    """The provider name on reasoning that this wire's model made."""

    @abstractmethod
    def model(self, url: str | None = None) -> Model:
        """A new model at the loopback server, or at ``url``."""

    @abstractmethod
    def messages(self, body: Any) -> list[Sent]: ...

    @abstractmethod
    def tools(self, body: Any) -> list[tuple[str, str, dict[str, Any]]]:
        """Name, description, schema."""

    @abstractmethod
    def schema(self, body: Any) -> dict[str, Any] | None:
        """The JSON schema that the answer has to fit, if one was sent."""

    @abstractmethod
    def reasoning(self, body: Any) -> list[tuple[str, str]]:
        """Text and signature of the reasoning that went back."""

    def sent(self) -> list[Sent]:
        """The messages of the last request."""
        return self.messages(self.server.requests[-1].body)


class ChatWire(Wire):
    """Chat completions, through either client."""

    overflow = ("context_length_exceeded", "This model's maximum context length is 8192 tokens.")
    signs_reasoning = False
    makes = "openai-compatible"

    def __init__(self, server: OpenAIServer, client: Client) -> None:
        self.server = server
        self.client: Client = client

    def model(self, url: str | None = None) -> Model:
        return resolve("openai/some/model", base_url=url or self.server.base_url, api_key="k", client=self.client)

    def messages(self, body: Any) -> list[Sent]:
        return [_chat_message(message) for message in body["messages"]]

    def tools(self, body: Any) -> list[tuple[str, str, dict[str, Any]]]:
        functions = [tool["function"] for tool in body.get("tools", [])]
        return [(f["name"], f["description"], f["parameters"]) for f in functions]

    def schema(self, body: Any) -> dict[str, Any] | None:
        wanted = body.get("response_format")
        return wanted["json_schema"]["schema"] if wanted else None

    def reasoning(self, body: Any) -> list[tuple[str, str]]:
        found = [m["reasoning_content"] for m in body["messages"] if m.get("reasoning_content")]
        return [(text, "") for text in found]


class ResponsesWire(Wire):
    overflow = ("context_length_exceeded", "Your input exceeds the context window of this model.")
    makes = "openai"

    def __init__(self, server: OpenAIServer) -> None:
        self.server = server

    def model(self, url: str | None = None) -> Model:
        return resolve("openai-responses/gpt-5", base_url=url or self.server.base_url, api_key="k")

    def messages(self, body: Any) -> list[Sent]:
        found = [_responses_item(item) for item in body["input"]]
        return [message for message in found if message]

    def tools(self, body: Any) -> list[tuple[str, str, dict[str, Any]]]:
        return [(t["name"], t["description"], t["parameters"]) for t in body.get("tools", [])]

    def schema(self, body: Any) -> dict[str, Any] | None:
        wanted = body.get("text", {}).get("format")
        return wanted["schema"] if wanted else None

    def reasoning(self, body: Any) -> list[tuple[str, str]]:
        items = [item for item in body["input"] if item.get("type") == "reasoning"]
        return [("".join(s["text"] for s in i["summary"]), i["encrypted_content"]) for i in items]


class AnthropicWire(Wire):
    overflow = ("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum")
    makes = "anthropic"

    def __init__(self, server: AnthropicServer) -> None:
        self.server = server

    def model(self, url: str | None = None) -> Model:
        return resolve("anthropic/claude-opus-4-8", base_url=url or self.server.base_url, api_key="k")

    def messages(self, body: Any) -> list[Sent]:
        system = body.get("system", "")
        blocks = system if isinstance(system, list) else [{"text": system}] if system else []
        out = [Sent(role="system", text=block["text"]) for block in blocks]
        for message in body["messages"]:
            out.extend(_anthropic_message(message))
        return out

    def tools(self, body: Any) -> list[tuple[str, str, dict[str, Any]]]:
        return [(t["name"], t["description"], t["input_schema"]) for t in body.get("tools", [])]

    def schema(self, body: Any) -> dict[str, Any] | None:
        wanted = body.get("output_config", {}).get("format")
        return wanted["schema"] if wanted else None

    def reasoning(self, body: Any) -> list[tuple[str, str]]:
        blocks = [block for message in body["messages"] for block in message["content"]]
        thoughts = [block for block in blocks if block["type"] == "thinking"]
        return [(block["thinking"], block["signature"]) for block in thoughts]


class GoogleWire(Wire):
    overflow = ("", "The input token count (9) exceeds the maximum number of tokens allowed (8).")
    makes = "google"

    def __init__(self, server: GoogleServer) -> None:
        self.server = server

    def model(self, url: str | None = None) -> Model:
        return resolve("google/gemini-2.5-flash", base_url=url or self.server.base_url, api_key="k")

    def messages(self, body: Any) -> list[Sent]:
        system = body.get("systemInstruction", {}).get("parts", [])
        out = [Sent(role="system", text=part["text"]) for part in system]
        return [*out, *(_google_message(content) for content in body["contents"])]

    def tools(self, body: Any) -> list[tuple[str, str, dict[str, Any]]]:
        found = [f for tool in body.get("tools", []) for f in tool["functionDeclarations"]]
        return [(f["name"], f["description"], f["parameters_json_schema"]) for f in found]

    def schema(self, body: Any) -> dict[str, Any] | None:
        wanted = body["generationConfig"].get("responseJsonSchema")
        return {key: value for key, value in wanted.items() if key != "title"} if wanted else None

    def reasoning(self, body: Any) -> list[tuple[str, str]]:
        parts = [part for content in body["contents"] for part in content["parts"]]
        return [(part["text"], "") for part in parts if part.get("thought")]


def _chat_message(message: dict[str, Any]) -> Sent:
    sent = Sent(role=message["role"])
    content = message.get("content") or ""
    if message["role"] == "tool":
        sent.results = [(message["tool_call_id"], content)]
    else:
        _take_content(sent, content)
    for call in message.get("tool_calls") or []:
        sent.calls.append((call["id"], call["function"]["name"], call["function"]["arguments"]))
    return sent


def _responses_item(item: dict[str, Any]) -> Sent | None:
    match item.get("type", "message"):
        case "message":
            sent = Sent(role=item["role"])
            _take_content(sent, item["content"])
            return sent
        case "function_call":
            call = (item["call_id"], item["name"], item["arguments"])
            return Sent(role="assistant", calls=[call])
        case "function_call_output":
            return Sent(role="tool", results=[(item["call_id"], item["output"])])
        case _:
            return None


def _take_content(sent: Sent, content: str | list[dict[str, Any]]) -> None:
    if isinstance(content, str):
        sent.text = content
        return
    for part in content:
        image = part.get("image_url")
        if image:
            sent.images.append(image if isinstance(image, str) else image["url"])
        else:
            sent.text += part["text"]


def _anthropic_message(message: dict[str, Any]) -> list[Sent]:
    sent = Sent(role=message["role"])
    tool = Sent(role="tool")
    for block in message["content"]:
        match block["type"]:
            case "text":
                sent.text += block["text"]
            case "image":
                source = block["source"]
                data = f"data:{source['media_type']};base64,{source['data']}"
                sent.images.append(data)
            case "tool_use":
                sent.calls.append((block["id"], block["name"], _compact(block["input"])))
            case "tool_result":
                tool.results.append((block["tool_use_id"], block["content"][0]["text"]))
            case _:
                pass
    said = sent.text or sent.images or sent.calls
    return [*([tool] if tool.results else []), *([sent] if said else [])]


def _google_message(content: dict[str, Any]) -> Sent:
    sent = Sent(role="assistant" if content["role"] == "model" else "user")
    for part in content["parts"]:
        match part:
            case {"text": text}:
                sent.text += text
            case {"inlineData": {"mime_type": media_type, "data": data}}:
                # base64 with the URL alphabet
                sent.images.append(f"data:{media_type};base64,{data.replace('-', '+').replace('_', '/')}")
            case {"functionCall": {"id": id, "name": name, "args": args}}:
                sent.calls.append((id, name, _compact(args)))
            case {"functionResponse": {"id": id, "response": response}}:
                sent.role = "tool"
                sent.results.append((id, next(iter(response.values()))))
            case _:
                raise AssertionError(f"not expected in a request: {part}")
    return sent


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
