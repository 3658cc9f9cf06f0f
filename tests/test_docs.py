"""The documentation holds: its code runs, its output is what it says, its links and names exist.

- ``python`` blocks of one page run in order, in one namespace and one temporary folder; ``await`` is allowed.
- An ``output`` block after a Python block is what that block prints (``...`` matches any text).
- A Python block that begins with ``# needs a key`` talks to loopback servers instead of the provider.
- A page with a Python block that begins with ``# needs NAME`` runs beside that framework: ``tests/integrations/NAME``.
- A block under ``<!-- file: NAME -->`` is written to the page's folder first.
- ``console`` blocks name existing commands and options; ``diarist observe NAME`` on such a file is run.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import dataclasses
import doctest
import inspect
import io
import re
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
import typer
from openai import AsyncOpenAI
from opentelemetry import trace
from typer.testing import CliRunner

import diarist
from diarist import (
    Agent,
    CallOptions,
    Memory,
    ModelEntry,
    ModelSettings,
    ObservationalMemoryConfig,
    ObservationConfig,
    Processor,
    ReflectionConfig,
    exceptions,
    memory,
    models,
    processor,
    processors,
    vectors,
)
from diarist.agent.result import StoppedBy
from diarist.chunks import Chunk, DataChunk, ModelFinish
from diarist.cli.app import app
from diarist.integrations import conversations, mastra
from diarist.integrations.conversations import FORMATS
from diarist.memory import MemoryHooks, RetrievalConfig, SemanticRecallConfig, WorkingMemoryConfig
from diarist.memory.background import Background
from diarist.memory.observational import events as data_parts
from diarist.memory.threads import Threads
from diarist.processors import ProcessorArgs, base
from diarist.storage import Storage
from diarist.vectors import VectorStore
from tests.loopback.anthropic_server import AnthropicServer
from tests.loopback.openai_server import OpenAIServer

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
HOWTO = DOCS / "howto"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
LINKED = [
    *PAGES,
    *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md", "benchmarks/README.md")),
]

_FENCE = re.compile(
    r"^(?:<!-- file: (?P<file>[\w.-]+) -->\n)?```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
_TARGET = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")
_FRAMEWORKS = tuple(
    f"# needs {name}\n"
    for name in ("langchain", "openai-agents", "strands", "llama_index", "google_adk", "agent_framework")
)
_KEYS = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY")


@dataclass(frozen=True)
class Block:
    language: str
    body: str
    line: int
    file: str | None


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(match["language"], match["body"], text[: match.start("body")].count("\n") + 1, match["file"])
        for match in _FENCE.finditer(text)
    ]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def code_words(*pages: Path) -> set[str]:
    """Everything that stands in code: in blocks, and words between backticks."""
    found: set[str] = set()
    for page in pages:
        text = text_of(page)
        code = [block.body for block in blocks(page)]
        code += re.findall(r"`([^`\n]+)`", _FENCE.sub("", text))
        found |= set(re.findall(r"[\w-]+", "\n".join(code)))
        found |= set(re.findall(r"\w+", "\n".join(code)))
    return found


# --- code ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name_of)
async def test_python_blocks_run(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    openai_server: OpenAIServer,
    anthropic_server: AnthropicServer,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in _KEYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(trace, "set_tracer_provider", partial(provide, monkeypatch))
    module = ModuleType("docs_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    found = blocks(page)
    opened: list[Any] = []
    try:
        for block, after in zip_longest(found, found[1:]):
            if block.file:
                (tmp_path / block.file).write_text(block.body, encoding="utf-8")
            if block.language != "python":
                continue
            if block.body.startswith(_FRAMEWORKS):
                return
            with monkeypatch.context() as scope:
                if block.body.startswith("# needs a key"):
                    scope.setenv("OPENAI_API_KEY", "test")
                    scope.setenv("OPENAI_BASE_URL", openai_server.base_url)
                    scope.setenv("ANTHROPIC_API_KEY", "test")
                    scope.setenv("ANTHROPIC_BASE_URL", anthropic_server.base_url)
                printed = await run(block, page, module)
                opened += vars(module).values()
            if after is not None and after.language == "output":
                check_output(after, printed, page)
    finally:
        await close(opened)


@pytest.mark.slow
@pytest.mark.parametrize("delays", [(0.3,), (0, 0, 0, 0.5, 0.5)], ids=["slow", "uneven"])
@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "quickstart.md"], ids=name_of)
async def test_the_first_pages_hold_however_long_background_work_takes(
    page: Path,
    delays: Sequence[float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    openai_server: OpenAIServer,
    anthropic_server: AnthropicServer,
) -> None:
    start, delay = Background.start, cycle(delays)

    def start_later(self: Background, name: str, work: Callable[[], Awaitable[object]]) -> bool:
        async def later() -> None:
            await asyncio.sleep(next(delay))
            await work()
            await asyncio.sleep(next(delay))

        return start(self, name, later)

    monkeypatch.setattr(Background, "start", start_later)
    await test_python_blocks_run(page, tmp_path, monkeypatch, openai_server, anthropic_server)


async def run(block: Block, page: Path, module: ModuleType) -> str:
    """Execute a block; returns what it printed. Its lines have the page's numbers in a traceback."""
    source = "\n" * block.line + block.body
    code = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if code.co_flags & inspect.CO_COROUTINE:
            await eval(code, module.__dict__)
        else:
            exec(code, module.__dict__)
    return printed.getvalue()


def provide(monkeypatch: pytest.MonkeyPatch, provider: trace.TracerProvider) -> None:
    """Set a tracer provider for one page; OpenTelemetry itself keeps one for the whole process."""
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)


def check_output(block: Block, printed: str, page: Path) -> None:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    same = doctest.OutputChecker().check_output(block.body, printed, flags)
    assert same, f"{name_of(page)}:{block.line} says\n{block.body}\nbut the block before prints\n{printed}"


async def close(opened: list[Any]) -> None:
    """Close what a page made; pages say when that matters, and leave it out otherwise."""
    opened += [value.memory for value in opened if isinstance(value, Agent)]
    for value in opened:
        if isinstance(value, Agent | Memory | Storage | VectorStore | AsyncOpenAI):
            await value.close()


@pytest.mark.slow
def test_the_excerpt_of_the_demo_is_real(tmp_path: Path) -> None:
    excerpt = re.search(r"<!-- from: diarist demo -->\n```text\n(.*?)^```", text_of(ROOT / "README.md"), re.M | re.S)
    assert excerpt is not None
    result = CliRunner().invoke(app, ["demo", "--storage", str(tmp_path / "demo.db")])
    assert result.exit_code == 0, result.output
    rest = iter(timeless(line) for line in result.stdout.splitlines())
    for line in excerpt[1].splitlines():
        assert line == "…" or timeless(line) in rest, f"not in the demo's output, or not in this order: {line}"


def timeless(line: str) -> str:
    return re.sub(r" in [\d.,]+ m?s$", "", line.rstrip())


# --- commands -----------------------------------------------------------------------------------------------


def commands(page: Path) -> Iterator[list[str]]:
    """The commands of a page's ``console`` blocks, without their output."""
    for block in blocks(page):
        if block.language == "console":
            for line in block.body.replace("\\\n", " ").splitlines():
                if line.startswith("$ "):
                    yield shlex.split(line.removeprefix("$ "), comments=True)


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_commands_and_options_exist(page: Path) -> None:
    makefile = text_of(ROOT / "Makefile")
    for command in commands(page):
        program, *words = command
        if program == "make":
            assert re.search(rf"^{words[0]}:", makefile, re.MULTILINE), f"no target {words[0]}"
        if program == "diarist":
            known = cli_options(*words) if words and not words[0].startswith("-") else {"--version", "--help"}
            for option in (word.split("=")[0] for word in words if word.startswith("--")):
                assert option in known, f"{name_of(page)}: {' '.join(command)}: no option {option}"


def cli_options(*words: str) -> set[str]:
    found: Any = typer.main.get_command(app)
    for word in words:
        if commands := getattr(found, "commands", None):  # a group, such as diarist eval
            assert word in commands, f"no command {word}"
            found = commands[word]
    return {"--help"} | {name for parameter in found.params for name in parameter.opts}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_shown_files_can_be_observed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = {block.file: block.body for block in blocks(page) if block.file}
    for name, body in files.items():
        (tmp_path / name).write_text(body, encoding="utf-8")
    for program, *words in commands(page):
        if program == "diarist" and words[:1] == ["observe"] and "--model" not in words and words[1] in files:
            result = CliRunner().invoke(app, words)
            assert result.exit_code == 0, f"diarist {' '.join(words)}: {result.stderr}"


# --- links --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_links_and_pictures_resolve(page: Path) -> None:
    text = _FENCE.sub("", text_of(page))
    for match in _TARGET.finditer(text):
        target = match[1] or match[2]
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name_of(page)} links to {target}"
        if anchor:
            assert anchor in anchors(file), f"{name_of(page)} links to {target}; there are {sorted(anchors(file))}"


def anchors(page: Path) -> set[str]:
    """A heading's anchor as GitHub makes it."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", text_of(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_index_links_every_page() -> None:
    index = text_of(DOCS / "README.md")
    linked = {(DOCS / target.split("#")[0]).resolve() for target in re.findall(r"\]\(([^)]+)\)", index)}
    pages = {page.resolve() for page in DOCS.rglob("*.md")} - {(DOCS / "README.md").resolve()}
    assert {str(page.relative_to(DOCS)) for page in pages - linked} == set()


# --- completeness -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "module", [diarist, memory, models, processors, conversations, mastra], ids=lambda module: module.__name__
)
def test_every_public_name_is_on_a_page(module: ModuleType) -> None:
    assert set(module.__all__) - code_words(*PAGES) == set()


def options_of(kind: Any) -> set[str]:
    if dataclasses.is_dataclass(kind):
        return {field.name for field in dataclasses.fields(kind) if field.init}
    return set(inspect.signature(kind).parameters)


def is_args(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, ProcessorArgs)


COMPLETE = {
    "keep-a-diary": {
        *options_of(ObservationalMemoryConfig),
        *options_of(ObservationConfig),
        *options_of(ReflectionConfig),
        *options_of(RetrievalConfig),
        *options_of(MemoryHooks),
        *options_of(Memory),
    },
    "keep-a-profile": options_of(WorkingMemoryConfig),
    "recall-by-meaning": options_of(SemanticRecallConfig) | {"vector", "embedder", "semantic_recall"},
    "choose-a-vector-store": set(vectors.__all__) - {"Filter", "Metadata", "Metric"},
    "call-an-agent": {*CallOptions.__annotations__, *options_of(Agent)},
    "choose-a-model": options_of(ModelSettings),
    "fall-back-to-another-model": options_of(ModelEntry),
    "approve-tool-calls": options_of(Agent.resume) - {"self", "options"},
    "write-a-processor": {
        *(name for name in vars(Processor) if not name.startswith("_")),
        *(name for name in vars(type(processor)) if not name.startswith("_")),
        *(name for kind in vars(base).values() if is_args(kind) for name in options_of(kind)),
    }
    - {"context", "processor_id"},
    "stream-a-run": {kind.type for kind in get_args(Chunk) if kind not in (DataChunk, ModelFinish)},
    "read-the-diary": {value for name, value in vars(data_parts).items() if name.isupper() and isinstance(value, str)},
    "observe-a-file": {*FORMATS, *(name for name in cli_options("observe") if name.startswith("--"))},
    "work-with-threads": {
        *(name for name in vars(Threads) if not name.startswith("_")),
        *options_of(Threads.clone),
        *options_of(Threads.list),
    }
    - {"self", "export", "export_all", "import_all"},
    "name-threads": options_of(memory.TitleConfig),
    "move-conversations": {
        "export",
        "export_all",
        "import_all",
        *options_of(Threads.import_all),
        *options_of(memory.Moved),
        *(name for command in ("export", "import") for name in cli_options(command) if name.startswith("--")),
    }
    - {"self", "--help"},
    "handle-errors": {
        *get_args(StoppedBy),
        *(name for name in vars(Processor) if name.startswith("process_") and name != "process_data_parts"),
    }
    | {
        name
        for name, value in vars(exceptions).items()
        if isinstance(value, type) and issubclass(value, exceptions.DiaristError)
    },
}
"""What each page has to name."""


@pytest.mark.parametrize("page", COMPLETE)
def test_a_page_names_all_of_its_matter(page: str) -> None:
    words = code_words(HOWTO / f"{page}.md")
    missing = {name for name in COMPLETE[page] if name not in words and name.removeprefix("--") not in words}
    assert missing == set()


BUILT_IN = {
    "BatchParts": "batch-a-stream",
    "CostGuard": "limit-costs",
    "EnsureFinalResponse": "ensure-a-final-answer",
    "LanguageDetector": "keep-to-a-language",
    "ModerationProcessor": "moderate-texts",
    "PIIDetector": "protect-personal-data",
    "PrefillErrorHandler": "recover-from-provider-errors",
    "PrepareStep": "ensure-a-final-answer",
    "PromptInjectionDetector": "detect-prompt-injection",
    "ProviderHistoryCompat": "switch-providers",
    "RegexFilter": "filter-by-pattern",
    "ResponseCache": "cache-responses",
    "StreamErrorRetry": "recover-from-provider-errors",
    "StructuredOutput": "structure-an-answer",
    "SystemPromptScrubber": "guard-the-system-prompt",
    "TokenLimiter": "limit-the-prompt",
    "ToolCallFilter": "limit-the-prompt",
    "ToolSearchProcessor": "search-tools",
    "UnicodeNormalizer": "normalize-input",
}
"""The page of each processor that comes along."""


def test_every_built_in_processor_has_a_page() -> None:
    kinds = {name: getattr(processors, name) for name in processors.__all__}
    ours = {name for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Processor)}
    assert ours - {"Processor", "Sequence", "Parallel", "Branch"} == BUILT_IN.keys()


@pytest.mark.parametrize("name", BUILT_IN)
def test_its_page_names_its_options(name: str) -> None:
    page = HOWTO / f"{BUILT_IN[name]}.md"
    assert {name, *options_of(getattr(processors, name))} - code_words(page) == set()


@pytest.mark.parametrize(
    "kind",
    [
        ObservationalMemoryConfig,
        ObservationConfig,
        ReflectionConfig,
        RetrievalConfig,
        ModelSettings,
        SemanticRecallConfig,
        WorkingMemoryConfig,
    ],
)
def test_documented_defaults_are_the_real_ones(kind: type[Any]) -> None:
    own = {
        ModelSettings: "choose-a-model",
        SemanticRecallConfig: "recall-by-meaning",
        WorkingMemoryConfig: "keep-a-profile",
    }
    page = HOWTO / f"{own.get(kind, 'keep-a-diary')}.md"
    section = text_of(page).split(f"## `{kind.__name__}`")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", section, re.MULTILINE))
    for field in dataclasses.fields(kind):
        if field.default is not dataclasses.MISSING:
            assert ast.literal_eval(rows[field.name]) == field.default, field.name
