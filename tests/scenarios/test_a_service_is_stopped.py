"""A service under uvicorn: nothing is lost when it is told to stop, and a client that leaves frees its thread."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from diarist import Memory, Message, ObservationalMemoryConfig
from diarist.storage import SQLiteStorage
from tests.loopback.openai_server import OpenAIServer
from tests.loopback.server import Answer, Hang

PAGES = Path(__file__).parents[2] / "docs" / "howto"
_APP = re.compile(r"<!-- file: \w+\.py -->\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)

SLOW_APP = """
import asyncio
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from diarist import Agent, Memory, Model, ObservationalMemoryConfig, ObservationConfig
from diarist.storage import SQLiteStorage
from diarist.testing import ScriptedModel

def opened(name):
    with open(name) as pipe:  # waits until the test opens its other end
        return pipe.read()

async def note(request):
    text = await asyncio.to_thread(opened, "observer.pipe")
    return f"Date: 2026-03-02\\n- 🟡 10:00 {text}"

class Slow(ScriptedModel):
    async def stream(self, request):
        async for chunk in super().stream(request):
            yield chunk
            if chunk.type == "text-delta" and chunk.payload.text == "Half ":
                await asyncio.to_thread(opened, "model.pipe")

observer = ObservationConfig(model=ScriptedModel(note), message_tokens=1_000, buffer_tokens=100)
memory = Memory(
    storage=SQLiteStorage("memory.db"), observational_memory=ObservationalMemoryConfig(observation=observer)
)
quick = Agent(model=ScriptedModel(lambda request: "Quick."), memory=memory)
slow = Agent(model=Slow(lambda request: ["Half ", "and whole."]), memory=memory)

async def ask(request):
    result = await quick.generate("talk " * 200, thread="noted")
    return PlainTextResponse(result.text)

async def stream(request):
    async def answer():
        async with slow.stream("Tell me.", thread="streamed") as stream:
            async for text in stream.text():
                yield text
    return StreamingResponse(answer())

@asynccontextmanager
async def lifespan(app):
    async with quick, slow:
        yield

app = Starlette(routes=[Route("/ask", ask), Route("/stream", stream)], lifespan=lifespan)
"""

HEADERS = {"content-type": "application/json", "x-user": "ada"}


class Service:
    """An application in a uvicorn process of its own."""

    def __init__(self, folder: Path, source: str, name: str = "app", *options: str) -> None:
        (folder / "app.py").write_text(source, encoding="utf-8")
        command = [sys.executable, "-m", "uvicorn", f"app:{name}", "--port", "0", *options]
        self._process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
        self.log: list[str] = []
        self.url = self._read_until("running on")[1]
        self._reader = threading.Thread(target=self._read_on, daemon=True)
        self._reader.start()

    def _read_until(self, words: str) -> re.Match[str]:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(line)
            if (found := re.search(rf"{words} (\S*)", line)) is not None:
                return found
        raise AssertionError("".join(self.log))

    def _read_on(self) -> None:
        assert self._process.stderr is not None
        self.log.extend(self._process.stderr)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer, as it is read."""
        data = None if body is None else json.dumps(body).encode()
        return urlopen(Request(self.url + path, data=data, headers=HEADERS, method=method))

    def begin(self, path: str, body: Any) -> HTTPConnection:
        """Send a request without waiting for its answer."""
        connection = HTTPConnection(urlsplit(self.url).netloc)
        connection.request("POST", path, json.dumps(body), HEADERS)
        return connection

    def json(self, method: str, path: str, body: Any = None) -> Any:
        with self.ask(method, path, body) as answer:
            return json.loads(answer.read())

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def ended(self) -> None:
        """Wait for its end."""
        assert self._process.wait() in (0, -signal.SIGTERM), "".join(self.log)

    def close(self) -> None:
        self._process.kill()
        self._reader.join()
        with self._process:
            pass


def recipe_of(page: str, model: str = 'ScriptedModel(lambda request: "Noted.")') -> str:
    """The application of a page, with this model."""
    found = _APP.search((PAGES / page).read_text(encoding="utf-8"))
    assert found is not None
    return found[1].replace('model=ScriptedModel(lambda request: "Noted.")', f"model={model}")


@pytest.fixture
def recipe(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path, recipe_of("serve-with-fastapi.md"))
    yield service
    service.close()


@pytest.fixture
def model_url(openai_server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where services find the model that the pages name in a comment."""
    monkeypatch.setenv("OPENAI_BASE_URL", openai_server.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    return openai_server.base_url


@pytest.fixture
def recipe_with_model(tmp_path: Path, model_url: str) -> Iterator[Service]:
    service = Service(tmp_path, recipe_of("serve-with-fastapi.md", '"openai/m"'))
    yield service
    service.close()


@pytest.fixture
def slow_service(tmp_path: Path) -> Iterator[Service]:
    for name in ("observer.pipe", "model.pipe"):
        os.mkfifo(tmp_path / name)
    service = Service(tmp_path, SLOW_APP)
    yield service
    service.close()


def database_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("memory.db*"))


def test_the_recipe(recipe: Service, tmp_path: Path) -> None:
    for number in range(3):
        assert recipe.json("POST", "/threads/trip", {"text": f"I say zanzibar{number}."})["text"] == "Noted."
    with recipe.ask("POST", "/threads/trip/stream", {"text": "And this."}) as answer:
        assert answer.read() == b"Noted."
    rows = recipe.json("GET", "/threads/trip")
    secret = next(row["id"] for row in rows if "zanzibar1" in row["text"])
    assert recipe.json("DELETE", f"/threads/trip/messages/{secret}") == {"message_ids": [secret], "left_on_disk": []}
    recipe.stop()
    recipe.ended()
    assert database_files(tmp_path) == ["memory.db"]
    data = (tmp_path / "memory.db").read_bytes()
    assert [n for n in range(3) if f"zanzibar{n}".encode() in data] == [0, 2]


BLOCKING = """ScriptedModel(lambda request: "Noted."), processors=[
    __import__("diarist.processors").processors.RegexFilter((), patterns={"bad": "bad"}, strategy="block")
]"""


@pytest.mark.parametrize(
    ("page", "name", "blank"), [("serve-with-fastapi.md", "app", 422), ("serve-with-django.md", "application", 400)]
)
def test_a_blocked_and_a_blank_question_are_no_empty_answers(tmp_path: Path, page: str, name: str, blank: int) -> None:
    service = Service(tmp_path, recipe_of(page, BLOCKING), name)
    try:
        for path in ("/threads/trip", "/threads/trip/stream"):
            for text, status in (("bad", 422), ("  ", blank)):
                with pytest.raises(HTTPError) as refused:
                    service.ask("POST", path, {"text": text})
                assert refused.value.code == status
                assert ("blocked: " in refused.value.read().decode()) == (text == "bad")
    finally:
        service.close()


@pytest.mark.slow
@pytest.mark.parametrize("answer", [Hang(), Answer(text=["Once "], then="hang")], ids=["before", "after"])
async def test_a_client_that_leaves_a_stream_ends_its_run(
    recipe_with_model: Service, openai_server: OpenAIServer, answer: Hang | Answer
) -> None:
    """Before its first text as well as after it."""
    openai_server.will(answer)
    connection = recipe_with_model.begin("/threads/trip/stream", {"text": "Tell me."})
    await openai_server.came()
    if isinstance(answer, Answer):
        assert connection.getresponse().read(5) == b"Once "
    connection.close()
    await openai_server.client_left()
    assert recipe_with_model.json("POST", "/threads/trip", {"text": "Are you there?"})["text"] == "ok"


@pytest.mark.slow
@pytest.mark.parametrize(("page", "name"), [("serve-with-fastapi.md", "app"), ("serve-with-django.md", "application")])
async def test_a_run_that_the_stop_cuts_off_frees_its_thread(
    tmp_path: Path, model_url: str, openai_server: OpenAIServer, page: str, name: str
) -> None:
    openai_server.will(Answer(text=["Once "], then="hang"))
    service = Service(tmp_path, recipe_of(page, '"openai/m"'), name, "--timeout-graceful-shutdown", "0")
    try:
        connection = service.begin("/threads/trip/stream", {"text": "Tell me."})
        assert connection.getresponse().read(5) == b"Once "
        service.stop()
        service.ended()
        connection.close()
    finally:
        service.close()
    async with Memory(storage=SQLiteStorage(tmp_path / "memory.db"), thread_wait=0) as memory:
        await memory.messages.save([Message.user("And?")], thread="trip", resource="ada")
        assert [row.text for row in await memory.messages.list(thread="trip")] == ["Tell me.", "And?"]


async def test_running_requests_and_background_work_are_finished(slow_service: Service, tmp_path: Path) -> None:
    stream = slow_service.ask("GET", "/stream")
    assert stream.read(5) == b"Half "
    with slow_service.ask("GET", "/ask") as answer:
        assert answer.read() == b"Quick."
    slow_service.stop()
    (tmp_path / "model.pipe").write_text("")  # opens once the model waits
    assert stream.read() == b"and whole."
    (tmp_path / "observer.pipe").write_text("User talked a lot.")
    slow_service.ended()
    assert database_files(tmp_path) == ["memory.db"]
    diary = ObservationalMemoryConfig(model="extractive")
    async with Memory(storage=SQLiteStorage(tmp_path / "memory.db"), observational_memory=diary) as memory:
        said = [row.text for row in await memory.messages.list(thread="streamed")]
        assert said == ["Tell me.", "Half and whole."]
        log = await memory.storage.get_log("thread:noted")
        assert log is not None
        assert ["User talked a lot." in entry.text for entry in log.entries] == [True]
