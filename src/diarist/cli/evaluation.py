"""``diarist eval``: the options of its commands. The code of an evaluation is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diarist.cli.exit_status import STOPPED_AT_BUDGET, exit_status
from diarist.cli.retention import retention

eval_app = typer.Typer(
    name="eval",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Evaluate memory systems on published benchmarks, and report the results.",
    short_help="Evaluate memory systems on published benchmarks.",
)
DATASETS = {
    "longmemeval": "LongMemEval (Wu et al. 2024): 500 questions of six types, each with a history of its own.",
    "locomo": "LoCoMo (Maharana et al. 2024): ten long conversations of two people.",
    "beam": "BEAM (Tavakoli et al. 2025): ten abilities, conversations of up to ten million tokens.",
    "halumem": "HaluMem (Chen et al. 2025): extraction, update and answers, each scored apart.",
    "personamem": "PersonaMem (Jiang et al. 2025): multiple-choice questions about a changing user.",
}
_STATUS = """

    A run that was stopped continues when the command is repeated. Exit status: 0 done, 1 a model or a database failed,
    2 bad input, 3 stopped at the budget, 130 interrupted."""


def evaluate(
    context: typer.Context,
    data: Annotated[Path, typer.Option(show_default=False, help="The data set's file or folder.")],
    out: Annotated[Path, typer.Option(show_default=False, help="The run's folder; an earlier run is continued.")],
    observer: Annotated[
        str,
        typer.Option(help="Model of Observer and Reflector, such as openai/gpt-5-mini; 'extractive' calls no model."),
    ] = "extractive",
    reader: Annotated[str | None, typer.Option(help="Model that answers the questions.")] = None,
    judge: Annotated[str | None, typer.Option(help="Model that judges the answers.")] = None,
    system: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A system to evaluate; give the option several times to compare systems: om (observational memory), "
            "om-recall (with the tool recall), summary (a running summary), semantic (semantic recall alone), last "
            "(the last messages), full (the whole history), or MODULE:OBJECT. Default: om.",
        ),
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="How often each question is answered and judged.")] = 1,
    items: Annotated[
        int | None, typer.Option(min=1, help="Number of histories, spread over the file. Default: all.")
    ] = None,
    questions: Annotated[
        int | None, typer.Option(min=1, help="Number of questions per history, spread. Default: all.")
    ] = None,
    budget: Annotated[float | None, typer.Option(min=0, help="Stop when this run has cost so many US dollars.")] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL=IN/OUT", help="Price of a model in US dollars per million tokens, if the list has none."
        ),
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="URL of the models' server, for all three roles.")] = None,
    observer_url: Annotated[str | None, typer.Option(help="URL of the observer's server.")] = None,
    reader_url: Annotated[str | None, typer.Option(help="URL of the reader's server.")] = None,
    judge_url: Annotated[str | None, typer.Option(help="URL of the judge's server.")] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Environment variable that holds the API key, for all three roles. Default: the provider's usual "
            "variable.",
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Histories or questions at the same time.")] = 4,
    message_tokens: Annotated[int, typer.Option(min=1, help="Observe when this many tokens are new.")] = 30_000,
    observation_tokens: Annotated[int, typer.Option(min=1, help="Condense the diary at this many tokens.")] = 40_000,
    summary_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="For summary: its tokens. Default: those of om's diary, or 4,000 without om."),
    ] = None,
    last_messages: Annotated[int, typer.Option(min=1, help="For last: number of messages.")] = 50,
    top_k: Annotated[int, typer.Option(min=1, help="For semantic: number of messages to find.")] = 20,
    embedder: Annotated[
        str | None, typer.Option(help="For semantic: such as openai/text-embedding-3-small, or wordllama (offline).")
    ] = None,
    context_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="For full and last: leave out the oldest messages beyond this many tokens."),
    ] = None,
    reading: Annotated[
        str, typer.Option(metavar="[con|direct]", help="For LongMemEval: extract notes first, or answer at once.")
    ] = "con",
    observer_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum tokens of one answer of Observer or Reflector. Default: 100,000."),
    ] = None,
    reader_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum tokens of an answer. Default: as published.")
    ] = None,
    judge_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum tokens of a judgement. Default: as published.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="JSON file with prompts that replace the data set's, by their names.")
    ] = None,
    memories: Annotated[
        Path | None, typer.Option(help="Folder of ingested memories, shared by runs. Default: 'memories' beside --out.")
    ] = None,
    memory_per_run: Annotated[
        bool, typer.Option("--memory-per-run", help="Ingest again for each of the --runs.")
    ] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try failed items again.")] = False,
) -> None:
    from diarist.cli.eval_run import run_evaluation
    from diarist.evals.metering import parse_price
    from diarist.evals.settings import Settings

    with exit_status():
        urls = {"observer": observer_url, "reader": reader_url, "judge": judge_url}
        settings = Settings(
            dataset=context.info_name or "",
            data=data,
            out=out,
            observer=observer,
            reader=reader,
            judge=judge,
            urls={role: url for role, own in urls.items() if (url := own or base_url)},
            systems=tuple(dict.fromkeys(system or ["om"])),
            runs=runs,
            items=items,
            questions=questions,
            reading=reading,
            prompts=prompts,
            message_tokens=message_tokens,
            observation_tokens=observation_tokens,
            summary_tokens=summary_tokens,
            last_messages=last_messages,
            top_k=top_k,
            embedder=embedder,
            context_tokens=context_tokens,
            observer_tokens=observer_tokens,
            reader_tokens=reader_tokens,
            judge_tokens=judge_tokens,
            budget=budget,
            prices=dict(map(parse_price, price or [])),
            concurrency=concurrency,
            memory_per_run=memory_per_run,
            memories=memories,
            retry_failed=retry_failed,
        )
        finished = run_evaluation(settings, api_key_env=api_key_env)
    if not finished:
        raise typer.Exit(STOPPED_AT_BUDGET)


for _name, _help in DATASETS.items():
    eval_app.command(_name, help=_help + _STATUS, short_help=_help)(evaluate)
eval_app.command("retention")(retention)


@eval_app.command(short_help="Write the report of a run, and print the averages.")
def report(
    run: Annotated[Path, typer.Argument(show_default=False, help="The run's folder.")],
    others: Annotated[
        list[Path] | None, typer.Argument(show_default=False, help="Folders of other runs, for paired tests.")
    ] = None,
) -> None:
    """Write report.md and report.html into a run's folder, and print the averages.

    Exit status: 0 done, 2 bad input.
    """
    from diarist.cli.eval_run import print_results
    from diarist.evals.report import write_report

    with exit_status():
        print_results(write_report(run, others or []))
