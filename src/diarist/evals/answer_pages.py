"""Every answer with its judgement as HTML: on the report's own page, or on pages beside it if there are many."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import urlencode

import orjson

from diarist.evals.datasets.base import Judged
from diarist.evals.html_page import html_page
from diarist.evals.records import file_name, read_text
from diarist.evals.results import Results
from diarist.messages import Json

MOST_ON_ONE_PAGE = 1_000
"""Answers on the report's own page; if there are more, each system, run and part has a page of its own."""

_CONTEXT_SHOWN, _JUDGED_SHOWN = 2_000, 20_000
"""Characters of a context on the page, and of one that is judged itself; the whole context is a file."""
_FILTERS = ("system", "run", "part", "type", "state")
_STATES = ("right", "partly", "wrong", "failed")


@dataclass(frozen=True, slots=True)
class _Answer:
    number: int
    system: str
    run: int
    item: Judged

    @property
    def state(self) -> str:
        score = self.item.score
        return "failed" if self.item.error else "right" if score == 1 else "wrong" if score == 0 else "partly"

    @property
    def facts(self) -> dict[str, str]:
        """The values that answers are filtered by."""
        part, type = str(self.item.question["part"]), self.item.type
        return dict(zip(_FILTERS, (self.system, str(self.run), part, type, self.state), strict=True))


class AnswerPages:
    """The answers of a run, and links to them."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self._answers = [_Answer(number, *each) for number, each in enumerate(results.every_item(), 1)]
        self._apart = len(self._answers) > MOST_ON_ONE_PAGE
        self._places = {(one.system, one.run, one.item.question["question"]): one for one in self._answers}

    def of(self, system: str, part: str, type: str = "", run: int | None = None) -> str:
        """Return the address of some answers; on pages of their own, those of the first run unless another is given."""
        wanted = {"system": system, "run": "" if run is None else str(run), "part": part, "type": type}
        page = ""
        if self._apart:
            first = next(one for one in self._answers if (one.system, one.facts["part"]) == (system, part))
            page = str(_page_of(system, first.run if run is None else run, part))
            wanted = {"type": type}
        return f"{page}#{urlencode({name: value for name, value in wanted.items() if value}) or 'state='}"

    def of_question(self, system: str, run: int, question: str) -> str:
        """Return the address of one answer."""
        answer = self._places[system, run, question]
        return f"{_page_of(system, run, answer.facts['part']) if self._apart else ''}#answer-{answer.number}"

    def on_report(self) -> str:
        """Return what the report's page has: all answers, or a table of the pages."""
        if not self._apart:
            return f"<section><h2>Every answer</h2>{_list(self._results.folder, self._answers)}</section>"
        rows = ""
        for (system, run, part), answers in self._groups().items():
            states = Counter(one.state for one in answers)
            counts = "".join(f"<td>{states[state]:,}</td>" for state in _STATES)
            name = html.escape(" · ".join(filter(None, (system, f"run {run}", part))))
            rows += (
                f'<tr><td><a href="{_page_of(system, run, part)}">{name}</a></td><td>{len(answers):,}</td>{counts}</tr>'
            )
        head = "".join(f"<th>{name}</th>" for name in ("Page", "Answers", *_STATES))
        return (
            f"<section><h2>Every answer</h2><p>The {len(self._answers):,} answers are on pages of their own, in the "
            f"folder <code>answers</code>.</p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
            "</section>"
        )

    def pages(self) -> Iterator[tuple[Path, str]]:
        """Yield path, below the run's folder, and text of each further page."""
        for (system, run, part), answers in self._groups().items() if self._apart else ():
            title = f"{self._results.run['title']}: {', '.join(filter(None, (system, f'run {run}', part)))}"
            body = f'<p><a href="../report.html">Report</a></p>{_list(self._results.folder, answers, "../")}'
            yield _page_of(system, run, part), html_page(title, body)

    def _groups(self) -> dict[tuple[str, int, str], list[_Answer]]:
        found: dict[tuple[str, int, str], list[_Answer]] = {}
        for one in self._answers:
            found.setdefault((one.system, one.run, one.facts["part"]), []).append(one)
        return found


def _page_of(system: str, run: int, part: str) -> Path:
    return Path("answers", "-".join(filter(None, (file_name(system), f"run{run}", part))) + ".html")


def _list(folder: Path, answers: Sequence[_Answer], root: str = "") -> str:
    """Return the filters, and the answers. ``root``: the way from the page to the run's folder."""
    fields = ""
    for name in _FILTERS:
        values = dict.fromkeys(one.facts[name] for one in answers)
        if len(values) > 1:
            every = "".join(f"<option>{html.escape(value)}</option>" for value in values)
            label = {"state": "Result"}.get(name, name.capitalize())
            fields += f'<label>{label} <select name="{name}"><option value="">all</option>{every}</select></label>'
    form = f"<form>{fields}<output></output></form>"
    return form + "".join(_answer_html(folder, one, root) for one in answers)


def _answer_html(folder: Path, one: _Answer, root: str) -> str:
    item = one.item
    question, answer, judgement = item.question, item.answer, item.judgement
    facts = one.facts
    head = " · ".join(filter(None, (one.system, f"run {one.run}", str(question["question"]), facts["part"], item.type)))
    replies: list[dict[str, Json]] = judgement.get("replies", [])
    prompts = [("reader", answer.get("prompt_sha256")), *(("judge", reply["prompt_sha256"]) for reply in replies)]
    rows = [
        ("Question", f"{question['text']}" + (f" (asked {question['date']})" if question["date"] else "")),
        ("Reference", str(question["answer"])),
        ("Evidence", ", ".join(map(str, question["evidence"]))),
        *((name.replace("_", " ").capitalize(), _plain(value)) for name, value in question["data"].items()),
        ("Answer", str(answer.get("hypothesis", "")) if question["asks"] == "answer" else "(the context below)"),
        ("Tool calls", "\n".join(answer.get("tool_calls", []))),
        ("Error", item.error or ""),
    ]
    more = [
        ("Score", f"{item.score:g}" + (f" ({item.label})" if item.label else "")),
        ("Details", orjson.dumps(judgement["details"]).decode() if judgement.get("details") else ""),
        ("Prompts", ", ".join(f"{name} {str(value)[:12]}" for name, value in prompts if value)),
    ]
    body = _rows(rows) + _replies_html(replies) + _rows(more) + _context_html(folder, item, root)
    data = "".join(f' data-{name}="{html.escape(value)}"' for name, value in facts.items())
    summary = f"<summary><b>{one.state}</b> {html.escape(head)}: {html.escape(str(question['text']))}</summary>"
    return f'<details id="answer-{one.number}" class="{one.state}"{data}>{summary}<dl>{body}</dl></details>\n'


def _rows(rows: Sequence[tuple[str, str]]) -> str:
    return "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in rows if text)


def _plain(value: Json) -> str:
    """Return a value of a data set in plain text: lists line by line."""
    if isinstance(value, list):
        return "\n".join(map(_plain, cast("list[Json]", value)))
    return value if isinstance(value, str) else "" if value is None else orjson.dumps(value).decode()


def _replies_html(replies: Sequence[dict[str, Json]]) -> str:
    """Return what the judge said; of several replies, each after its subject."""

    def text(reply: dict[str, Json]) -> str:
        about = f'<span class="about">{html.escape(str(reply["about"]))}</span>\n' if reply.get("about") else ""
        error = f'\n<span class="error">{html.escape(str(reply["error"]))}</span>' if reply.get("error") else ""
        return about + html.escape(str(reply["reply"])) + error

    if not replies:
        return ""
    said = text(replies[0]) if len(replies) == 1 else f"<ol><li>{'</li><li>'.join(map(text, replies))}</li></ol>"
    return f"<dt>Judge</dt><dd>{said}</dd>"


def _context_html(folder: Path, item: Judged, root: str) -> str:
    if not (file := item.answer.get("context")):
        return ""
    path = folder / str(file)
    text = read_text(path) if path.is_file() else "(the file is missing)"
    shown = _CONTEXT_SHOWN if item.question["asks"] == "answer" else _JUDGED_SHOWN
    more = f" … {len(text) - shown:,} more characters in the file" if len(text) > shown else ""
    name, tokens = html.escape(str(file)), item.answer.get("context_tokens", 0)
    link = f'<a href="{root}{name}">{name}</a>, {tokens:,} tokens'
    return f"<dt>Context</dt><dd>{link}\n{html.escape(text[:shown])}{more}</dd>"
