"""``diarist eval retention``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from diarist.cli.app import app
from tests.loopback.openai_server import Answer, OpenAIServer
from tests.loopback.server import HttpError

SMALL = Path(__file__).parents[1] / "evals" / "small_talk.json"

NOTES = ["Mira named her cat Pixel.", "Tom found new work.", "Tom lives near the sea now."]


def test_the_extractive_observer_is_measured_without_a_key() -> None:
    result = CliRunner().invoke(app, ["eval", "retention", "--data", str(SMALL), "--conversations", "1"])
    assert result.exit_code == 0
    assert "extractive notes" in result.output
    assert "longest sentences" in result.output


def test_a_model_at_an_address_is_measured(openai_server: OpenAIServer) -> None:
    openai_server.will(*[Answer(text=[f"Date: 2024-05-06\n* 🔴 (10:15) {note} [#1]"]) for note in NOTES])
    options = ["--observer", "openai/local", "--base-url", openai_server.base_url, "--conversations", "1", "--json"]
    result = CliRunner().invoke(app, ["eval", "retention", "--data", str(SMALL), *options])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert figures["observer"] == "openai/local"
    assert figures["calls"] == 3
    assert figures["kept"]["notes"]["questions"]["one fact"] == 1
    assert "Observing conversation 1 of 1: batch 3 of 3, " in result.stderr
    assert "Observing correction 20 of 20" in result.stderr


@pytest.mark.parametrize(
    "refusal", [HttpError(status=401, message="wrong key"), HttpError(status=404, message="no such model")]
)
def test_a_model_that_never_answers_is_an_error(openai_server: OpenAIServer, refusal: HttpError) -> None:
    openai_server.will(*[refusal] * 60)
    options = ["--observer", "openai/local", "--base-url", openai_server.base_url, "--conversations", "1"]
    result = CliRunner().invoke(app, ["eval", "retention", "--data", str(SMALL), *options])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1].startswith("Error: ")
    assert refusal.message in result.stderr.splitlines()[-1]


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["eval", "retention", "--data", str(tmp_path / "none.json")])
    assert result.exit_code == 2
    assert result.output.count("\n") == 1
    assert "none.json" in result.output
