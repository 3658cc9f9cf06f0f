"""The calls of the Observer and the Reflector. Their results become entries of the diary."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace

from diarist.exceptions import ConflictError, RoleError
from diarist.memory.observational.decide import ReflectionPlan
from diarist.memory.observational.events import Cycle
from diarist.memory.observational.log import transitions
from diarist.memory.observational.log.coverage import digest_rows
from diarist.memory.observational.log.log_store import lost_some
from diarist.memory.observational.message_units import tokens_of, whole_units
from diarist.memory.observational.prompt.threads import name_thread, thread_label
from diarist.memory.observational.recall_tool import RECALL
from diarist.memory.observational.roles.base import Observed, Reflected
from diarist.memory.observational.thread_diary import Batch, CycleResult, NotSmallerError, ThreadDiary
from diarist.memory.rows import seq_of
from diarist.memory.working.observer_updates import store_update
from diarist.memory.working.shapes import UPDATE_TOOL
from diarist.messages import FilePart, Message, ToolPart
from diarist.storage.records import Observation, ObservationLog, PendingReflection, Source


async def observe(
    diary: ThreadDiary,
    log: ObservationLog,
    batch: Batch,
    *,
    timeout: float | None,
    buffered: bool = False,
    before_save: Callable[[], Awaitable[object]] | None = None,
) -> CycleResult | Exception:
    """Observe a batch and add its entry to the diary. The entry covers only the rows that the Observer noted.

    Errors of the Observer or the storage are returned, not raised.

    Args:
        log: The diary with the earlier notes for the Observer's prompt.
        timeout: Time limit of the Observer in seconds; None for no limit.
        buffered: Store the entry to be activated later. So is an entry that its run no longer waits for.
        before_save: Awaited before the entry is saved, so that parallel calls are saved in order.
    """
    cycle_id = transitions.cycle_id(log.key, "observation", batch.sources)
    tokens = tokens_of(batch.rows)
    cycle = diary.cycle(cycle_id, "observation", log, tokens, buffered=buffered)

    async def work() -> CycleResult:
        asked = diary.observer.observe(_without_own_calls(diary, batch.rows), earlier=log.entries)
        observed = await diary.call_role(asked, cycle, timeout)
        if before_save is not None:
            await before_save()
        noted = _noted(batch, observed.unnoted) if observed.unnoted else batch
        made = _observation(diary, cycle, noted, observed)
        saved, entry = await _save_observation(diary, made, noted, log, observed.refused)
        await store_update(diary.storage, observed.working_memory, entry.run_id)
        return CycleResult(saved, entry, observed.shortfall, refused=observed.refused)

    return await diary.run_cycle(cycle, work, batch)


def _observation(diary: ThreadDiary, cycle: Cycle, batch: Batch, observed: Observed) -> Observation:
    if not observed.text.strip() and any(map(_has_content, _without_own_calls(diary, batch.rows))):
        raise RoleError(f"the Observer {observed.model} gave no notes")
    text = observed.text
    threads = {source.thread_id for source in batch.sources}
    if diary.config.scope == "resource" and len(threads) == 1:  # add the thread to the notes if the Observer did not
        text = name_thread(text, thread_label(threads.pop(), obscured=diary.config.obscures_threads))
    return Observation(
        id=f"obs_{cycle.id}",
        text=text,
        tokens=diary.counter.count(text),
        sources=batch.sources,
        message_tokens=tokens_of(batch.rows),
        message_count=len(batch.rows),
        observed_at=diary.clock(),
        state="buffered" if cycle.buffered or diary.was_left else "active",
        cycle_id=cycle.id,
        run_id=batch.run_id,
        current_task=observed.current_task,
        suggested_response=observed.suggested_response,
        thread_title=observed.thread_title,
        citations=tuple(map(tuple, observed.citations)),
        model=observed.model,
        usage=observed.usage,
    )


def _without_own_calls(diary: ThreadDiary, rows: Sequence[Message]) -> list[Message]:
    """Remove the calls of memory's own tools: updates of working memory and results of ``recall`` repeat messages."""
    own = {UPDATE_TOOL, RECALL} if diary.config.retrieves else {UPDATE_TOOL}
    return [
        replace(row, parts=[part for part in row.parts if not (isinstance(part, ToolPart) and part.name in own)])
        if any(part.name in own for part in row.tool_parts)
        else row
        for row in rows
    ]


def _has_content(row: Message) -> bool:
    return bool(row.text.strip()) or any(isinstance(part, ToolPart | FilePart) for part in row.parts)


async def _save_observation(
    diary: ThreadDiary, entry: Observation, batch: Batch, told: ObservationLog, refused: str
) -> tuple[ObservationLog, Observation]:
    """Save an entry, and return it as it was saved: without its run if that has ended.

    Raises ConflictError if its rows have changed, or if notes in the Observer's prompt were forgotten.

    If rows change between the check and the save, their diary changes too; the save then fails, and both are repeated.
    Changes of a live run's own rows do not change the diary, but the end of the run removes the entries made from them.

    Args:
        told: The log with the notes in the Observer's prompt.
        refused: As for ``Observed``. An entry of refused rows counts as a failure, so that few rows are skipped while
            the Observer refuses all.
    """

    async def read() -> ObservationLog:
        nonlocal entry
        if entry.run_id is not None:
            run = await diary.storage.get_run(entry.run_id)
            if run is None or run.state == "discarded":
                raise ConflictError(f"run {entry.run_id!r} was discarded; the notes are dropped")
            entry = replace(entry, run_id=entry.run_id if run.state == "live" else None)
        log, changed = await diary.logs.read_with_changes(
            diary.thread_id, diary.resource_id, entry.sources, entry.run_id
        )
        if changed:
            raise ConflictError("the messages were changed while they were observed; the notes are dropped")
        return log

    def change(log: ObservationLog) -> ObservationLog:
        if lost_some(told, log):
            raise ConflictError(
                "earlier notes in the Observer's prompt were forgotten during the call; its notes are dropped"
            )
        if reason := transitions.why_rejected(log, entry, {row.run_id for row in batch.rows if row.run_id}):
            raise ConflictError(f"{reason}; the notes are dropped")
        added = transitions.add_observation(log, entry)
        if refused:
            return transitions.record_failure(added, "observation", at=entry.observed_at, error=refused)
        return transitions.record_success(added, "observation")

    return await diary.update(change, read=read, rows=batch.ends), entry


def _noted(batch: Batch, unnoted: Collection[str]) -> Batch:
    """Return the noted part of a batch: each thread's rows before its first unnoted one, in whole units.

    Raises RoleError if nothing is left.
    """
    threads: dict[str | None, list[Message]] = {}
    for row in batch.rows:
        threads.setdefault(row.thread_id, []).append(row)
    noted: set[str] = set()
    for rows in threads.values():
        count = next((place for place, row in enumerate(rows) if row.id in unnoted), len(rows))
        noted.update(row.id for row in rows[: whole_units(rows, count)])
    if not noted:
        raise RoleError("the Observer noted none of the messages")
    rows = [row for row in batch.rows if row.id in noted]
    sources = [_narrowed(source, batch.rows, noted) for source in batch.sources]
    return replace(batch, rows=rows, sources=tuple(source for source in sources if source is not None))


def _narrowed(source: Source, rows: Sequence[Message], noted: Collection[str]) -> Source | None:
    """Return a source that ends at its last noted row; None if no row of it was noted."""
    own = [
        row for row in rows if row.thread_id == source.thread_id and source.first_seq <= seq_of(row) <= source.last_seq
    ]
    left = [row for row in own if row.id in noted]
    if len(left) == len(own):
        return source
    return replace(source, last_seq=seq_of(left[-1]), digest=digest_rows(left)) if left else None


# -- the Reflector


async def reflect(
    diary: ThreadDiary,
    log: ObservationLog,
    plan: ReflectionPlan,
    *,
    timeout: float | None,
    buffered: bool = False,
    guidance: str | None = None,
) -> CycleResult | Exception:
    """Replace the planned entries by one, in a new generation; ``timeout`` and errors as for ``observe``.

    A replacement that is hardly smaller is dropped, and the plan is not tried again until an entry is added.

    Args:
        buffered: Store the reflection to be activated later.
        guidance: The user's instructions on what to keep or drop.
    """
    cycle = diary.cycle(plan.cycle_id, "reflection", log, plan.tokens, buffered=buffered)

    async def work() -> CycleResult:
        call = diary.reflector.reflect(plan.entries, target_tokens=plan.target_tokens, guidance=guidance)
        reflected = await diary.call_role(call, cycle, timeout)
        entry = _reflection(diary, f"ref_{cycle.id}", plan, reflected)
        if entry.tokens >= plan.limit_tokens:
            await diary.update(lambda log: transitions.suppress(log, plan.cycle_id))
            raise NotSmallerError(
                f"the Reflector {entry.model} hardly shortened the notes: {entry.tokens:,} of {plan.tokens:,} tokens"
            )
        saved = await _save_reflection(diary, entry, plan, buffered=buffered or diary.was_left)
        return CycleResult(saved, entry, reflected.shortfall)

    return await diary.run_cycle(cycle, work)


def _reflection(diary: ThreadDiary, id: str, plan: ReflectionPlan, reflected: Reflected) -> Observation:
    if not reflected.text.strip():
        raise RoleError(f"the Reflector {reflected.model} gave no notes")
    threads = transitions.threads_of_entries(plan.entries)
    shared = len(threads) > 1  # the Reflector does not name the thread of its task
    known = transitions.derive_hints(plan.entries)
    task, response = known.current_task, known.suggested_response  # the Observer saw the messages
    return Observation(
        id=id,
        text=reflected.text,
        tokens=diary.counter.count(reflected.text),
        sources=plan.sources,
        message_tokens=sum(entry.message_tokens for entry in plan.entries),
        message_count=sum(entry.message_count for entry in plan.entries),
        observed_at=diary.clock(),
        kind="reflection",
        cycle_id=plan.cycle_id,
        current_task=None if shared else reflected.current_task if task is None else task,
        suggested_response=None if shared else reflected.suggested_response if response is None else response,
        thread_title=None if shared else known.thread_title,
        hints=transitions.hints_of_threads(plan.entries, threads) if shared else (),
        model=reflected.model,
        usage=reflected.usage,
    )


async def _save_reflection(
    diary: ThreadDiary, entry: Observation, plan: ReflectionPlan, *, buffered: bool
) -> ObservationLog:
    pending = PendingReflection(entry=entry, replaces=plan.replaces, tokens=plan.tokens)

    def change(log: ObservationLog) -> ObservationLog:
        if buffered:
            changed = transitions.hold_reflection(log, pending)
        else:
            changed = transitions.add_reflection(log, entry, plan.replaces)
        if changed is log and not transitions.has_cycle(log, entry.cycle_id):
            raise ConflictError("the entries changed while they were condensed; the reflection is dropped")
        return transitions.record_success(changed, "reflection")

    return await diary.update(change)
