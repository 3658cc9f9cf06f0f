"""``diarist observe`` makes a diary of a file, keeps it where asked, and says plainly what went wrong."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from diarist import Memory
from diarist.cli.app import app
from diarist.storage import SQLiteStorage

FACTS = [
    "My name is Ada and my sister Bea lives in Trieste.",
    "I decided to fly to Rome on 12 June 2026, flight AZ 204.",
    "Please remember that I am allergic to walnuts.",
    "The hotel costs 340 euros for three nights.",
]


def chat(*texts: str, padding: int = 0) -> str:
    """Plain JSON lines: each text by the user, an answer, ten minutes apart."""
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(texts):
        when = f"2026-01-{5 + number // 100:02}T{9 + number // 6 % 12:02}:{number % 6}0:00Z"
        more = " This and that was said besides." * padding
        lines.append({"role": "user", "content": text + more, "created_at": when})
        lines.append({"role": "assistant", "content": "I see.", "created_at": when})
    return "".join(json.dumps(line) + "\n" for line in lines)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "chat.jsonl"
    path.write_text(chat(*FACTS))
    return path


def tells(diary: str) -> bool:
    """Whether one of the facts is in it; which ones the extractive Observer takes is its own matter."""
    return any(fact in diary for fact in FACTS)


def observe(*arguments: object, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(app, ["observe", *map(str, arguments)], env=env)


def observe_json(*arguments: object) -> dict[str, Any]:
    result = observe(*arguments, "--output", "json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


# --- without a model -----------------------------------------------------------------------------


def test_the_diary_is_all_there_is_on_standard_output(file: Path):
    result = observe(file)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("Date: 2026-01-05\n")
    assert tells(result.stdout)
    assert "Tokens in" not in result.stdout


def test_the_summary_and_the_honest_word_about_extractive_go_to_standard_error(file: Path):
    shown = observe(file).stderr
    assert "No language model is used" in shown
    assert "8, 8 of them dated, 0 tool calls" in shown
    for name in ("Tokens in", "Diary tokens", "Ratio", "Observer", "Reflector", "Cost", "Time", "Stored in"):
        assert f"\n{name} " in shown
    assert "\x1b" not in shown


def test_json_holds_the_diary_its_entries_and_the_numbers(file: Path):
    told = observe_json(file)
    assert tells(told["diary"])
    assert told["messages"] == told["new_messages"] == 8
    assert told["diary_tokens"] == sum(entry["tokens"] for entry in told["entries"]) > 0
    assert told["ratio"] == pytest.approx(told["message_tokens"] / told["diary_tokens"])
    assert told["observer"]["calls"] >= 1
    assert (told["cost_usd"], told["storage"]) == (0, None)


def test_standard_input_is_read(file: Path):
    result = CliRunner().invoke(app, ["observe", "-"], input=file.read_text())
    assert result.exit_code == 0, result.stderr
    assert result.stdout == observe(file).stdout
    storage = str(file.with_name("memory.db"))
    unnamed = CliRunner().invoke(app, ["observe", "-", "--storage", storage], input=file.read_text())
    assert (unnamed.exit_code, unnamed.stderr.startswith("Error: add --thread: standard input")) == (2, True)
    for new in (8, 0):
        named = CliRunner().invoke(
            app, ["observe", "-", "--storage", storage, "--thread", "t", "--output", "json"], input=file.read_text()
        )
        assert json.loads(named.stdout)["new_messages"] == new
    broken = CliRunner().invoke(app, ["observe", "-"], input="{")
    assert broken.stderr.startswith("Error: standard input: line 1, column")


def test_undated_messages_stay_undated_without_a_date(tmp_path: Path):
    path = tmp_path / "chat.json"
    path.write_text(json.dumps([{"role": "user", "content": text} for text in FACTS[2:]]))
    undated = observe(path)
    assert undated.exit_code == 0
    assert "Note: no message has a time stamp" in undated.stderr
    assert "20" not in undated.stdout.splitlines()[0]
    assert observe(path, "--date", "2026-03-01").stdout.startswith("Date: 2026-03-01\n")


def test_a_limit_takes_the_beginning_only(file: Path):
    told = observe_json(file, "--limit-tokens", 20)
    assert told["messages"] < 8
    assert told["message_tokens"] <= 20
    assert any(note.startswith("messages beyond --limit-tokens") for note in told["notes"])


def test_system_messages_are_named_and_not_observed(tmp_path: Path):
    path = tmp_path / "chat.json"
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": FACTS[2]}]
    path.write_text(json.dumps(messages))
    told = observe_json(path)
    assert told["messages"] == 1
    assert "system messages, not observed: 1" in told["notes"]


# --- kept in a database --------------------------------------------------------------------------


def test_observing_a_file_again_adds_only_its_new_messages(file: Path):
    storage = file.with_name("memory.db")
    first = observe_json(file, "--storage", storage)
    again = observe_json(file, "--storage", storage)
    assert (first["new_messages"], again["new_messages"], again["observer"]["calls"]) == (8, 0, 0)
    assert again["diary"] == first["diary"]
    file.write_text(chat(*FACTS, "My new phone number is 555 0199."))
    grown = observe_json(file, "--storage", storage)
    assert grown["new_messages"] == 2
    assert "555 0199" in grown["diary"]
    assert grown["diary"].startswith(first["entries"][0]["text"].strip())


def test_a_stored_conversation_begins_when_its_first_message_was_sent(file: Path):
    storage = file.with_name("memory.db")
    observe_json(file, "--storage", storage)
    memory = Memory(storage=SQLiteStorage(storage))
    [thread] = memory.sync.threads.list().items
    assert thread.created_at == memory.sync.messages.list(thread=thread.id)[0].created_at
    memory.sync.close()


def test_an_end_that_waits_for_a_tool_is_taken_when_it_is_complete(file: Path):
    call = {"id": "c", "type": "function", "function": {"name": "book", "arguments": "{}"}}
    begun = chat(*FACTS) + json.dumps({"role": "assistant", "content": None, "tool_calls": [call]}) + "\n"
    result = {"role": "tool", "tool_call_id": "c", "content": "Booked: seat 14C"}
    file.write_text(begun)
    storage = file.with_name("memory.db")
    waiting = observe_json(file, "--storage", storage)
    assert waiting["new_messages"] == 8
    assert "messages at the end that wait for a tool's result, left out until the file has it: 1" in waiting["notes"]
    file.write_text(begun + json.dumps(result) + "\n")
    complete = observe_json(file, "--storage", storage)
    assert (complete["new_messages"], complete["unobserved_tokens"]) == (1, 0)
    assert "14C" in complete["diary"]


def test_a_call_that_the_user_left_unanswered_holds_nothing_back(file: Path):
    call = {"id": "c", "type": "function", "function": {"name": "book", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": FACTS[0]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "user", "content": FACTS[1]},
    ]
    file.write_text("".join(json.dumps(message) + "\n" for message in messages))
    told = observe_json(file)
    assert (told["messages"], told["unobserved_tokens"]) == (3, 0)


def test_files_of_one_name_do_not_share_a_thread(file: Path, tmp_path: Path):
    other = tmp_path / "elsewhere" / file.name
    other.parent.mkdir()
    other.write_text(chat("I keep bees in Delft."))
    storage = tmp_path / "memory.db"
    first, second = (observe_json(path, "--storage", storage) for path in (file, other))
    assert first["thread"] != second["thread"]
    assert not tells(second["diary"])
    named = observe_json(other, "--storage", storage, "--thread", "bees")
    assert named["thread"] == "bees"


def test_a_thread_of_a_resource_is_observed_with_its_resource(file: Path):
    storage = file.with_name("memory.db")
    imported = CliRunner().invoke(app, ["import", str(file), str(storage), "--resource", "ada"])
    assert imported.exit_code == 0, imported.stderr
    refused = observe(file, "--storage", storage)
    assert refused.exit_code == 2
    assert refused.stderr.endswith("belongs to resource 'ada', and cannot be used without --resource\n")
    told = observe_json(file, "--storage", storage, "--resource", "ada")
    assert told["new_messages"] == 0
    assert tells(told["diary"])
    observe_json(file, "--storage", storage, "--thread", "bees")
    refused = observe(file, "--storage", storage, "--thread", "bees", "--resource", "ada")
    assert refused.stderr.endswith("begun without a resource; use it without --resource\n")


# --- bad input -----------------------------------------------------------------------------------


def test_a_bad_file_is_one_line_with_its_place_and_leaves_nothing(file: Path):
    file.write_text(chat(*FACTS) + '{"role": "us')
    storage = file.with_name("memory.db")
    result = observe(file, "--storage", storage)
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"Error: {file}: line 9, column")
    assert not storage.exists()


def test_a_refusal_names_the_option_that_skips_broken_lines(file: Path):
    file.write_text(chat(*FACTS) + '{"role": "nobody", "content": "x"}\n')
    refused = observe(file)
    assert refused.stderr.endswith("; --skip-broken-lines leaves such lines out\n")
    told = observe(file, "--skip-broken-lines")
    assert told.exit_code == 0
    assert "Note: broken lines or messages, left out: 1 (first: line 9)" in told.stderr
    assert tells(told.stdout)


def test_a_line_that_is_not_utf_8_can_be_left_out(file: Path):
    file.write_bytes(chat(*FACTS).encode() + '{"role": "user", "content": "café"}\n'.encode("latin-1"))
    refused = observe(file)
    assert "line 9: not UTF-8 (byte 0xe9 at offset" in refused.stderr
    assert refused.stderr.endswith("; --skip-broken-lines leaves such lines out\n")
    told = observe(file, "--skip-broken-lines")
    assert told.exit_code == 0
    assert "Note: lines that are not JSON, left out: 1 (first: line 9)" in told.stderr
    assert tells(told.stdout)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--select", 2], "holds 1 conversation; select one from 1 to 1, not 2"),
        (["--format", "csv"], "unknown format 'csv'; known:"),
        (["--timezone", "Mars/Base"], "Mars/Base"),
        (["--date", "soon"], "'--date': 'soon' is not a date such as 2026-03-01"),
        (["--output", "xml"], "'--output': 'xml' is not one of text, json"),
        (["--base-url", "http://localhost:1"], "have no effect without a model"),
        (["--thread", "bees"], "--thread has no effect without --storage"),
        (["--resource", "ada"], "--resource has no effect without --storage"),
        (["--model", "gpt-5-mini"], "gpt-5-mini"),
        (["--model", "openai/x", "--api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY is not set"),
        (["--storage", "/no/such/folder/m.db"], "the folder /no/such/folder does not exist"),
        (["--storage", "/tmp"], "is a folder"),
        (["--limit-tokens", 0], "--limit-tokens"),
    ],
)
def test_bad_options_are_refused_with_status_2(file: Path, options: list[object], says: str):
    result = observe(file, *options)
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stdout == ""


# --- with a model behind an OpenAI-compatible server ---------------------------------------------


class ModelServer:
    """Answers chat completions; each request takes the next answer, the last one for ever.

    An answer is a text, an HTTP status, or None: then the request hangs and ``waiting`` is set.
    """

    def __init__(self, *answers: str | int | None) -> None:
        self.answers = list(answers)
        self.requests: list[dict[str, Any]] = []
        self.waiting, self.released = Event(), Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                request = json.loads(self.rfile.read(length))
                server.requests.append(request)
                answer = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
                if answer is None:
                    server.waiting.set()
                    server.released.wait(60)
                elif isinstance(answer, int):
                    self._send(answer, "application/json", json.dumps({"error": {"message": "down"}}))
                elif request.get("stream"):
                    self._send(200, "text/event-stream", _events(answer))
                else:
                    self._send(200, "application/json", json.dumps(_completion(answer)))

            def _send(self, status: int, kind: str, body: str) -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None:
                """Silent."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.options = (
            *("--model", "openai/local", "--base-url"),
            f"http://127.0.0.1:{self._http.server_port}/v1",
        )

    def close(self) -> None:
        self.released.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def _completion(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {
        "id": "r",
        "object": "chat.completion",
        "created": 1,
        "model": "local",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 120, "completion_tokens": 30, "total_tokens": 150},
    }


def _events(text: str) -> str:
    whole = _completion(text)
    base = {"id": "r", "object": "chat.completion.chunk", "created": 1, "model": "local"}
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": text}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": whole["usage"]},
    ]
    return "".join(f"data: {json.dumps(base | chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def notes(fact: str) -> str:
    return f"<observations>\nDate: 2026-01-05\n- 🔴 (09:00) {fact}\n</observations>"


@pytest.fixture
def serve() -> Iterator[Any]:
    servers: list[ModelServer] = []

    def start(*answers: str | int | None) -> ModelServer:
        servers.append(ModelServer(*answers))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def long_file(tmp_path: Path) -> Path:
    """Enough for three calls of the Observer with ``SMALL`` thresholds."""
    path = tmp_path / "long.jsonl"
    path.write_text(chat(*(f"Fact number {n} is here." for n in range(6)), padding=20))
    return path


SMALL = ("--batch-tokens", 300)


def test_a_model_writes_the_diary_and_its_calls_and_tokens_are_told(file: Path, serve: Any):
    server = serve(notes("Ada cannot eat walnuts"))
    told = observe_json(file, *server.options)
    assert "Ada cannot eat walnuts" in told["diary"]
    assert "allergic to walnuts" in json.dumps(server.requests)
    assert told["observer"] == {
        "calls": len(server.requests),
        "input_tokens": 120 * len(server.requests),
        "cached_tokens": 0,
        "output_tokens": 30 * len(server.requests),
    }
    assert told["cost_usd"] is None
    assert "unknown price" in observe(file, *server.options).stderr


def test_a_failing_model_keeps_what_was_finished_and_the_command_goes_on_later(long_file: Path, serve: Any):
    storage = long_file.with_name("memory.db")
    broken = serve(notes("The beginning was told"), 401)
    result = observe(long_file, *broken.options, *SMALL, "--storage", storage)
    assert result.exit_code == 1
    assert result.stdout == ""
    *begun, kept, error = result.stderr.splitlines()
    assert begun[0].startswith("Observing: 0 of ")
    assert [line.startswith("Observing: ") for line in begun] == [True] * len(broken.requests)
    assert kept.startswith(f"Stored: 12 messages and the notes of 1 finished call, in {storage}")
    assert error.startswith("Error: ")
    working = serve(notes("The rest was told"))
    told = observe_json(long_file, *working.options, *SMALL, "--storage", storage)
    assert told["new_messages"] == 0
    assert told["diary"].index("The beginning was told") < told["diary"].index("The rest was told")
    assert "Fact number 0" not in json.dumps([r["messages"][-1] for r in working.requests])


def test_an_address_without_v1_is_corrected_with_the_name_of_the_option(file: Path, serve: Any):
    server = serve(404)
    address = server.options[server.options.index("--base-url") + 1]
    result = observe(file, *(option.removesuffix("/v1") for option in server.options))
    assert result.exit_code == 1
    assert f"most servers need /v1 in the address: --base-url '{address}')" in result.stderr
    assert "base_url" not in result.stderr


def test_without_a_storage_a_failing_model_leaves_nothing_and_says_so(file: Path, serve: Any):
    result = observe(file, *serve(401).options)
    assert result.exit_code == 1
    assert "Nothing is stored" in result.stderr


# --- as a process --------------------------------------------------------------------------------

COMMAND = [sys.executable, "-c", "from diarist.cli import main; main()"]


def test_the_command_runs_as_a_process(file: Path):
    run = subprocess.run(
        [*COMMAND, "observe", str(file), "--output", "json"], capture_output=True, text=True, check=True
    )
    assert tells(json.loads(run.stdout)["diary"])


def test_an_interruption_keeps_what_was_finished(long_file: Path, serve: Any):
    storage = long_file.with_name("memory.db")
    server = serve(notes("The beginning was told"), None)
    arguments = [*COMMAND, "observe", long_file, *server.options, *SMALL, "--storage", storage]
    with subprocess.Popen(
        [str(argument) for argument in arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # who runs the tests may ignore it
    ) as process:
        assert server.waiting.wait(60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
    assert process.returncode == 130, err
    assert out == ""
    assert "Stored: 12 messages and the notes of 1 finished call" in err
    assert err.splitlines()[-1] == "Error: interrupted"
    told = observe_json(long_file, "--storage", storage)
    assert "The beginning was told" in told["diary"]
    assert told["new_messages"] == 0


def test_the_tokens_of_a_looping_answer_are_counted(tmp_path: Path) -> None:
    import asyncio

    from diarist.evals.metering import Meter, MeteredModel
    from diarist.memory.observational.roles.base import Observed
    from diarist.memory.observational.roles.observer import ModelObserver
    from diarist.messages import Message
    from diarist.testing import ScriptedModel

    loop = ["<diary>\nDate: 2026-03-02\n", *["- 🟡 09:00 User asked the same again\n"] * 400]
    model = MeteredModel(ScriptedModel(loop, loop), Meter(), listed=True)

    async def observe() -> Observed:
        return await ModelObserver(model).observe([Message.user("hello")], earlier=[])

    observed = asyncio.run(observe())
    assert observed.text.startswith("Date: 2026-03-02\n- 🟡 09:00 User asked the same again\n- 🟢 the notes broke off")
    assert model.total.calls == 2
    assert model.total.usage.input_tokens > 500
    assert 500 < model.total.usage.output_tokens < 5000
