"""A provider on this machine, in a process of its own, that answers chat completions as fast as it can.

Run as a program it prints its port and serves until its standard input closes. The path says how it
answers: ``/CHUNKS/PACE/v1/chat/completions`` streams ``CHUNKS`` text deltas, each written ``PACE``
microseconds after the one before; 0 writes all of them at once.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
WORDS = "the weather in Rome is mild today and rather dry for this time of the year"
NOTED = (
    "the train to Rome leaves at nine from platform four and costs less than a flight if it is booked early so please "
    "keep a seat by the window for my mother who cannot walk far and tell the hotel that we arrive late because"
)


@contextmanager
def provider() -> Iterator[str]:
    """Start one; yields its address."""
    command = [sys.executable, __file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()


def _event(delta: dict[str, Any] | None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": more.pop("finish", None)}
    data = {
        "id": "chatcmpl-CXyHgKpoBqwB8ErGtHVgrSm3AIXqy",
        "object": "chat.completion.chunk",
        "created": 1_760_000_000,
        "model": "gpt-5-mini-2025-08-07",
        "service_tier": "default",
        "system_fingerprint": None,
        "choices": [] if delta is None else [choice],
        "usage": None,
        "obfuscation": "Xk2f9Q",
        **more,
    }
    return _framed(json.dumps(data, separators=(",", ":")).encode())


def _framed(data: bytes) -> bytes:
    data = b"data: " + data + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


@cache
def _answer(chunks: int) -> list[bytes]:
    words = WORDS.split()
    return _streamed([f" {words[number % len(words)]}" for number in range(chunks)])


def _notes(chunks: int) -> list[bytes]:
    """Notes as an Observer writes them, 25 words a line; other ones each time."""
    texts = [f" {word}" for word in random.choices(NOTED.split(), k=chunks)]
    texts[::25] = [f"\n- 🟡 {random.randrange(24):02}:15 note {random.randrange(10_000)}:" for _ in texts[::25]]
    return _streamed(["<diary>\nDate: 2026-01-01", *texts, "\n</diary>"])


def _streamed(texts: list[str]) -> list[bytes]:
    chunks = len(texts)
    usage = {
        "prompt_tokens": 20,
        "completion_tokens": chunks,
        "total_tokens": 20 + chunks,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }
    return [
        _event({"role": "assistant", "content": "", "refusal": None}),
        *[_event({"content": text}) for text in texts],
        _event({}, finish="stop"),
        _event(None, usage=usage),
        _framed(b"[DONE]"),
    ]


@cache
def _whole(chunks: int) -> bytes:
    """An answer that is not streamed."""
    words = WORDS.split()
    text = "".join([f" {words[number % len(words)]}" for number in range(chunks)])
    message = {"role": "assistant", "content": text, "refusal": None}
    data = {
        "id": "chatcmpl-CXyHgKpoBqwB8ErGtHVgrSm3AIXqy",
        "object": "chat.completion",
        "created": 1_760_000_000,
        "model": "gpt-5-mini-2025-08-07",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 20, "completion_tokens": chunks, "total_tokens": 20 + chunks},
    }
    encoded = json.dumps(data, separators=(",", ":")).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(encoded)}\r\n\r\n"
    return head.encode() + encoded


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            start, *lines = head.decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines if line)
            body = await reader.readexactly(int(headers["content-length"]))
            chunks, pace = start.split(" ")[1].split("/")[1:3]
            if not json.loads(body).get("stream"):
                writer.write(_whole(int(chunks)))
                await writer.drain()
                continue
            writer.write(HEAD)
            events = _notes(int(chunks.removeprefix("notes-"))) if chunks.startswith("notes-") else _answer(int(chunks))
            if pace == "0":
                writer.write(b"".join(events))
            else:
                for event in events:
                    writer.write(event)
                    await asyncio.sleep(int(pace) / 1e6)
            writer.write(b"0\r\n\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def _main() -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_main())
