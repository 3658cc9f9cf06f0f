"""A call of the Reflector: replaces entries of the diary by one shorter entry."""

from __future__ import annotations

from diarist.exceptions import ConflictError
from diarist.memory.observational.decide import ReflectionPlan
from diarist.memory.observational.log import transitions
from diarist.memory.observational.roles.base import Reflected, RoleError
from diarist.memory.observational.thread_diary import CycleResult, NotSmallerError, ThreadDiary
from diarist.storage.records import Observation, ObservationLog, PendingReflection


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
        entry = _entry(diary, f"ref_{cycle.id}", plan, reflected)
        if entry.tokens >= plan.limit_tokens:
            await diary.update(lambda log: transitions.suppress(log, plan.cycle_id))
            raise NotSmallerError(
                f"the Reflector {entry.model} hardly shortened the notes: {entry.tokens:,} of {plan.tokens:,} tokens"
            )
        return CycleResult(await _save(diary, entry, plan, buffered=buffered), entry, reflected.shortfall)

    return await diary.run_cycle(cycle, work, thread_ids=[diary.thread_id])


def _entry(diary: ThreadDiary, id: str, plan: ReflectionPlan, reflected: Reflected) -> Observation:
    if not reflected.text.strip():
        raise RoleError(f"the Reflector {reflected.model} gave no notes")
    threads = transitions.threads_of_entries(plan.entries)
    shared = len(threads) > 1  # the Reflector does not name the thread of its task
    known = transitions.derive_hints(plan.entries)
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
        current_task=None if shared else reflected.current_task or known.current_task,
        suggested_response=None if shared else reflected.suggested_response or known.suggested_response,
        thread_title=None if shared else known.thread_title,
        hints=transitions.hints_of_threads(plan.entries, threads) if shared else (),
        model=reflected.model,
        usage=reflected.usage,
    )


async def _save(diary: ThreadDiary, entry: Observation, plan: ReflectionPlan, *, buffered: bool) -> ObservationLog:
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
