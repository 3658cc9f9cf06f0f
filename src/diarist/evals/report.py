"""The report of a run: Markdown, and one HTML page that stands alone."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path

import orjson

from diarist.evals.answer_pages import AnswerPages
from diarist.evals.datasets.base import Figure
from diarist.evals.html_page import html_page
from diarist.evals.plots import average_plot, cost_plot
from diarist.evals.records import file_name, write_text
from diarist.evals.results import Cost, Metric, Results
from diarist.evals.statistics import BOOTSTRAP_DRAWS, FEWEST_FOR_BOOTSTRAP

_AVERAGES_NOTE = (
    "**micro**: the mean over all questions. **macro**: the mean of the types' means, so that each type counts the "
    "same. In percent, with 95 % confidence intervals: Wilson's for shares, for equal scores, and for fewer than "
    f"{FEWEST_FOR_BOOTSTRAP} questions, where a bootstrap would be too narrow; else a percentile bootstrap over "
    f"the questions (up to {BOOTSTRAP_DRAWS:,} draws); for macro, those of the types joined (MOVER). Of several "
    "runs, each question counts with its mean, so the intervals are about questions, not about runs."
)

_SHOWN_IN_WORDS = (
    *("dataset", "data", "prompts", "memory_per_run"),
    *("observer", "reader", "judge", "observer_url", "reader_url", "judge_url"),
)
"""Settings that the table of the run shows in rows of their own."""

Row = Sequence[str]


def write_report(folder: Path, others: Sequence[Path] = ()) -> Results:
    """Write ``report.md``, ``report.html``, ``hypotheses/`` and, for many answers, ``answers/`` into a run's folder.

    Args:
        others: Folders of other runs, for paired tests on the questions that they share with this one.

    Raises:
        InputError: A folder holds no run.
    """
    results = Results(folder)
    answers = AnswerPages(results)
    sections = list(_sections(results, answers, [Results(other) for other in others]))
    write_text(folder / "report.md", _markdown(results, sections))
    write_text(folder / "report.html", _page(results, sections, answers))
    for path, text in answers.pages():
        write_text(folder / path, text)
    hypotheses: dict[Path, str] = {}
    for system, run, item in results.every_item():
        if item.question["asks"] == "answer":  # also failed ones: evaluate_qa.py averages only the lines that it gets
            line = {"question_id": item.question["question"], "hypothesis": item.answer.get("hypothesis", "")}
            path = folder / "hypotheses" / f"{file_name(system)}-run{run}.jsonl"
            hypotheses[path] = hypotheses.get(path, "") + orjson.dumps(line).decode() + "\n"
    for path, text in hypotheses.items():
        write_text(path, text)
    return results


class Section:
    """A heading, paragraphs, a table, and a plot as SVG.

    Args:
        links: For each row, the columns that are links on the HTML page, with their addresses.
    """

    def __init__(
        self,
        title: str,
        *paragraphs: str,
        head: Row = (),
        rows: Sequence[Row] = (),
        links: Sequence[Sequence[tuple[int, str]]] = (),
        plot: str = "",
    ) -> None:
        self.title, self.paragraphs = title, paragraphs
        self.head, self.rows, self.links, self.plot = head, rows, links, plot


def _sections(results: Results, answers: AnswerPages, others: Sequence[Results]) -> Iterable[Section]:
    yield _run_section(results)
    notes = (_AVERAGES_NOTE,)
    for part in results.parts:
        for metric in results.metrics(part):
            yield _average_section(results, answers, metric, part, *notes)
            notes = ()
    yield from _summary_sections(results)
    yield from _comparison_sections(results, "Paired comparisons", None)
    for other in others:
        title = f"Beside {other.folder}"
        differing = ", ".join(results.differing(other))
        notes = [f"**The two runs differ in** {differing}. A difference may come from that."] if differing else []
        sections = [*_comparison_sections(results, title, other, *notes)]
        yield from sections or [Section(title, *notes, "The two runs have no judged question in common.")]
    yield _cost_section(results)
    failures = [
        (system, str(run), str(item.question["question"]), item.error)
        for system, run, item in results.every_item()
        if item.error
    ]
    yield Section(
        "Failed items",
        "A failed item counts as wrong. If only some of its judgements failed, only those count as wrong. "
        "`--retry-failed` tries again."
        if failures
        else "None.",
        head=("System", "Run", "Question", "Error"),
        rows=failures,
        links=[[(2, answers.of_question(system, int(run), question))] for system, run, question, _ in failures],
    )


def _run_section(results: Results) -> Section:
    run, settings = results.run, results.run["settings"]
    histories = len({question["history"] for question in results.questions.values()})
    shown = {
        name: value for name, value in results.settings.items() if name not in _SHOWN_IN_WORDS and value is not None
    }
    if settings["dataset"] != "longmemeval":
        shown.pop("reading", None)  # the others know one way
    shown |= {name: run[name] for name in ("reader_tokens", "judge_tokens") if name in run}
    rows = [
        ("Data set", f"{run['title']} ({run['paper']}); {run['data_file']}"),
        ("Histories", f"{histories:,}" + (f" of {run['histories']:,}" if "histories" in run else "")),
        ("Questions", f"{len(results.questions):,}"),
        ("Metric", run["metric"]),
        ("Judge's prompts", "as published" if run["exact_prompts"] else "our own wording (see prompts.json)"),
        *(
            (name.capitalize(), str(settings[name] or "none") + (f" at {url}" if url else ""))
            for name in ("observer", "reader", "judge")
            for url in [settings.get(f"{name}_url")]
        ),
        *((name, f"{value:,}" if isinstance(value, int) else str(value)) for name, value in shown.items()),
        ("Runs", f"{run['runs']:,}"),
        ("Memories", "made again for every run" if settings["memory_per_run"] else "made once, and shared by the runs"),
        *([("Begun", str(run["began"]))] if "began" in run else []),
        ("diarist", run["diarist"]),
    ]
    unfinished = [f"**Not finished.** {'; '.join(results.unfinished)}."] if results.unfinished else []
    return Section("The run", *unfinished, head=("", ""), rows=rows)


def _average_section(results: Results, answers: AnswerPages, metric: Metric, part: str, *notes: str) -> Section:
    averages = {system: results.averages(system, metric, part) for system in results.systems}
    averages = {system: found for system, found in averages.items() if found}
    rows = [
        (
            system if place == 0 else "",
            average.name,
            f"{average.questions:,}",
            _percent(average.mean),
            f"{_percent(average.interval.low)} to {_percent(average.interval.high)}",
            " · ".join(map(_percent, average.runs)) if len(average.runs) > 1 else "",
            average.method,
        )
        for system, found in averages.items()
        for place, average in enumerate(found)
    ]
    return Section(
        f"{_of(part)}{metric.name}",
        *notes,
        head=("System", "Type", "Questions", "Mean", "95 % interval", "Runs", "Interval by"),
        rows=rows,
        links=[
            [(1, answers.of(system, part, "" if average.name in ("micro", "macro") else average.name))]
            for system, found in averages.items()
            for average in found
        ],
        plot=average_plot(averages),
    )


def _summary_sections(results: Results) -> Iterable[Section]:
    figures = {system: {figure.name: figure for figure in results.summary(system)} for system in results.systems}
    names = list(dict.fromkeys(name for found in figures.values() for name in found))
    if names:
        rows = [
            (name, *(_figure_text(found[name]) if name in found else "" for found in figures.values()))
            for name in names
        ]
        yield Section("The paper's further figures", head=("", *figures), rows=rows)


def _figure_text(figure: Figure) -> str:
    if figure.value is None:
        return "–"
    return _percent(figure.value) if figure.share else f"{figure.value:,.4g}"


def _comparison_sections(results: Results, title: str, beside: Results | None, *notes: str) -> Iterable[Section]:
    for part in results.parts:
        metrics = results.metrics(part)
        if beside is not None:
            names = {metric.name for metric in beside.metrics(part)}
            metrics = [metric for metric in metrics if metric.name in names]
        if not metrics:
            continue
        for metric in metrics:
            compared = results.comparisons(metric, part, beside)
            binary = all(one.test for one in compared)
            splits = ("Right only in first / second",) if binary else ()
            head = ("First", "Second", "Questions", "Difference", "95 % interval", "Interval by", *splits, "p")
            rows = [
                (
                    one.first,
                    one.second,
                    f"{one.questions:,}",
                    f"{100 * one.difference.mean:+.1f}",
                    f"{100 * one.difference.interval.low:+.1f} to {100 * one.difference.interval.high:+.1f}",
                    one.difference.method,
                    *((f"{one.test.first_only} / {one.test.second_only}",) if one.test else ()),
                    _p_value(one.p),
                )
                for one in compared
            ]
            if rows:
                yield Section(
                    f"{_of(part)}{title}" + (f": {metric.name}" if len(metrics) > 1 else ""),
                    *notes,
                    f"By {metric.name}, on the same questions. The difference is in points, with a 95 % interval for "
                    "pairs: that of Bonett and Price (2012), which is on the safe side for scores other than right "
                    f"and wrong; for these, from {FEWEST_FOR_BOOTSTRAP} questions on, a percentile bootstrap. "
                    + ("p is McNemar's exact test" if binary else "p is the paired randomization test")
                    + ", two-sided. "
                    + f"{len(rows):,} {'comparison' if len(rows) == 1 else 'comparisons, not corrected'}.",
                    head=head,
                    rows=rows,
                )


def _p_value(p: float) -> str:
    return f"{p:.4f}" if p >= 0.0001 else "< 0.0001"


def _cost_section(results: Results) -> Section:
    rows: list[Row] = []
    costs: dict[str, list[Cost]] = {}
    for system in results.systems:
        costs[system] = results.costs(system)
        size = results.context_tokens(system)
        for place, cost in enumerate(costs[system]):
            rows.append(
                (
                    system if place == 0 else "",
                    cost.stage,
                    f"{cost.calls:,}",
                    f"{cost.input_tokens:,}" + (f" ({cost.cached_tokens:,} cached)" if cost.cached_tokens else ""),
                    f"{cost.output_tokens:,}",
                    f"{cost.seconds:,.1f}",
                    money(cost.cost, cost.unpriced),
                    f"{size[0]:,.0f} ({size[1]:,.0f})" if size and cost.stage == "answer" else "",
                )
            )
    if (lost := results.interrupted).calls:
        rows.append(
            (
                "(any)",
                lost.stage,
                f"{lost.calls:,}",
                f"{lost.input_tokens:,}",
                f"{lost.output_tokens:,}",
                "",
                money(lost.cost, lost.unpriced),
                "",
            )
        )
    points = {
        system: (size[0], found[-2].mean)
        for system in results.systems
        if (size := results.context_tokens(system))
        and (found := results.averages(system, results.metrics(results.parts[-1])[-1], results.parts[-1]))
    }
    return Section(
        "Costs",
        "Tokens and prices as the providers report and list them; a price that is not known is not guessed. Memories "
        "are made once: their costs count here also if an earlier run paid them (`paid_by_this_run` in ingest.jsonl), "
        "and for om and om-recall, which share them, twice. "
        "Calls that a system of your own makes are not counted.",
        head=(
            "System",
            "Stage",
            "Calls",
            "Tokens in",
            "Tokens out",
            "Seconds",
            "Cost",
            "Context tokens, mean (median)",
        ),
        rows=rows,
        plot=cost_plot(points),
    )


def money(dollars: float, unpriced: int) -> str:
    """Return an amount, and how much of it is unknown."""
    if unpriced and not dollars:
        return "unknown price"
    return f"${dollars:,.4f}" + (f" and {unpriced:,} of unknown price" if unpriced else "")


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def _of(part: str) -> str:
    return f"{part}: " if part else ""


# -- Markdown


def _markdown(results: Results, sections: Sequence[Section]) -> str:
    parts = [f"# {results.run['title']}: {', '.join(results.systems)}", *map(_section_markdown, sections)]
    parts.append("Every answer with its context and judgement: `report.html`, `answers.jsonl`, `judgements.jsonl`.")
    return "\n\n".join(parts) + "\n"


def _section_markdown(section: Section) -> str:
    lines = [f"## {section.title}", *section.paragraphs]
    if section.rows:
        table = [section.head, ["---"] * len(section.head), *section.rows]
        lines.append("\n".join("| " + " | ".join(map(_cell, row)) + " |" for row in table))
    return "\n\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# -- HTML


def _page(results: Results, sections: Sequence[Section], answers: AnswerPages) -> str:
    title = f"{results.run['title']}: {', '.join(results.systems)}"
    return html_page(title, "".join(map(_section_html, sections)) + answers.on_report())


def _section_html(section: Section) -> str:
    parts = [f"<h2>{html.escape(section.title)}</h2>"]
    parts += [f"<p>{_inline(paragraph)}</p>" for paragraph in section.paragraphs]
    if section.plot:
        parts.append(f'<div class="plot">{section.plot}</div>')
    if section.rows:
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in section.head)
        body = ""
        for number, row in enumerate(section.rows):
            cells = list(map(html.escape, row))
            for column, address in section.links[number] if section.links else ():
                cells[column] = f'<a href="{html.escape(address)}">{cells[column]}</a>'
            body += "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
    return "<section>" + "".join(parts) + "</section>\n"


def _inline(text: str) -> str:
    """Return a paragraph with its two kinds of marks, bold and code, as HTML."""
    for mark, tag in (("**", "strong"), ("`", "code")):
        pieces = (html.escape(text) if mark == "**" else text).split(mark)
        text = "".join(f"<{tag}>{piece}</{tag}>" if place % 2 else piece for place, piece in enumerate(pieces))
    return text
