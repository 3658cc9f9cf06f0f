"""The promises, as checks of what was saved, what was shown, and what is left at the end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from diarist.memory.observational.log.coverage import digest_rows
from diarist.messages import Message, PromptMessage, SentBlock
from diarist.storage import Observation, ObservationLog, Storage
from diarist.tokens import default_counter
from tests.exactly_once.fake_models import marks_of, said_by
from tests.exactly_once.ledger import Ledger, Shown


def covers(entry: Observation, row: Message) -> bool:
    seq = row.seq or 0
    return any(s.thread_id == row.thread_id and s.first_seq <= seq <= s.last_seq for s in entry.sources)


def tokens_of(row: Message) -> int:
    """Count the tokens again: one token per word."""
    parts = [f"look {{}} {part.result if part.result is not None else ''}" for part in row.tool_parts]
    return _words_in(" ".join([row.text, *parts])) + _tokens_of_note(row.sent)


def _tokens_of_note(note: SentBlock | None) -> int:
    if note is None:
        return 0
    words = _words_in(note.text)
    was_cut = note.tokens != words and note.made_from.keys() == {"date"}
    return default_counter().count(note.text) if was_cut else words


def _words_in(text: str) -> int:
    return len(text.split())


# -- each save of a log


def check_saved(ledger: Ledger, log: ObservationLog) -> None:
    before = ledger.logs.get(log.key)
    ledger.logs[log.key] = log
    ranges = sorted((s.thread_id, s.first_seq, s.last_seq) for e in log.entries for s in e.sources)
    for (thread, _, last), (other, first, _) in pairwise(ranges):
        if thread == other and first <= last:
            ledger.violated("entries overlap in version", log.version, ranges)
    for entry in log.entries:
        if entry.message_count and not entry.text.strip():
            ledger.violated("empty notes stand for", entry.message_count, "messages", entry.id)
    if before is None or before.version != log.version - 1:
        return
    if log.generation > before.generation:
        _check_generation(ledger, before, log)
    elif log.generation < before.generation:
        ledger.violated("the generation fell from", before.generation, "to", log.generation)


def _check_generation(ledger: Ledger, before: ObservationLog, after: ObservationLog) -> None:
    if sorted(_seqs(before.entries)) != sorted(_seqs(after.entries)):
        ledger.violated("a new generation covers other rows", _seqs(before.entries), _seqs(after.entries))
    if before.buffered != after.buffered:
        ledger.violated("a chunk is lost at a new generation")
    if len(after.active) > len(before.active):
        ledger.violated("a new generation has more entries")


def _seqs(entries: Sequence[Observation]) -> list[tuple[str, int]]:
    return [(s.thread_id, seq) for e in entries for s in e.sources for seq in range(s.first_seq, s.last_seq + 1)]


# -- each prompt


def check_prompt(ledger: Ledger, shown: Shown, rows: Sequence[Message]) -> None:
    """``rows``: what the run can see in storage when it is shown."""
    ledger.prompts += 1
    talk = [message for message in shown.prompt if message.role != "system"]
    if not talk or talk[0].role != "user":
        ledger.violated(shown.run.id, "the window does not begin with the user")
    there = {message.message_id for message in talk}
    if missing := [id for id in shown.run.asked if id not in there]:
        ledger.violated(shown.run.id, "the question is gone:", missing)
    _check_calls(ledger, shown, talk)
    text = shown.prompt.text
    for mark in marks_of(text):
        if why := ledger.others_gone(shown.run).get(mark):
            ledger.violated(shown.run.id, "is shown", mark, why)
    _check_once(ledger, shown, rows, there)
    _check_pairs(ledger, shown, rows)
    _check_status(ledger, shown, rows)


def _check_calls(ledger: Ledger, shown: Shown, talk: Sequence[PromptMessage]) -> None:
    open_calls: set[str] = set()
    for message in talk:
        for part in message.parts:
            if part.type == "tool-call":
                open_calls.add(part.call_id)
            elif part.type == "tool-result":
                if part.call_id not in open_calls:
                    ledger.violated(shown.run.id, "a result without its call:", part.call_id)
                open_calls.discard(part.call_id)
    if open_calls:
        ledger.violated(shown.run.id, "calls without a result:", open_calls)


def _check_once(ledger: Ledger, shown: Shown, rows: Sequence[Message], there: set[str | None]) -> None:
    """Each row is raw in the prompt or in one entry that the run renders; the first one may be shown once more."""
    first = next((message.message_id for message in shown.prompt if message.role != "system"), None)
    for row in rows:
        entries = sum(covers(entry, row) for entry in shown.log.active)
        pending = all(part.state == "call" for part in row.tool_parts) and not row.text
        if entries == 0 and row.id not in there and not (pending or row.role == "tool"):
            ledger.violated(shown.run.id, "neither raw nor noted:", row.id, row.seq)
        elif entries and row.id in there and row.id != first:
            ledger.violated(shown.run.id, "both raw and noted:", row.id, row.seq)


def _check_pairs(ledger: Ledger, shown: Shown, rows: Sequence[Message]) -> None:
    """A result that came in a row of its own is where its call is, unless the user had talked past the call.

    He may have done so in a run that was discarded since, or is of another process: that is not told apart.
    """
    calls: dict[str, Message] = {}
    for row in rows:
        if row.role == "user":
            calls.clear()
        for part in row.tool_parts:
            if part.state == "call":
                calls[part.call_id] = row
            elif row.role == "tool" and part.call_id in calls.keys() & ledger.known_calls:
                noted = {any(covers(entry, half) for entry in shown.log.active) for half in (row, calls[part.call_id])}
                if len(noted) > 1:
                    ledger.violated(shown.run.id, "a call and its result are parted:", calls[part.call_id].id, row.id)


def _check_status(ledger: Ledger, shown: Shown, rows: Sequence[Message]) -> None:
    """The status counts the rows that the run holds: all that are stored and not noted, with the same text.

    Another process may have changed rows of earlier runs since this one read them: it dates notes that may quote what
    was forgotten, and removes rows of a run that ended as discarded after its time.
    """
    if not shown.status:
        return
    active = shown.status["windows"]["active"]
    if (told := active["messages"]["tokens"]) != (counted := sum(map(tokens_of, shown.raw))):
        ledger.violated(shown.run.id, "the status says", told, "tokens of messages, a recount", counted)
    stored = {row.id: row.text for row in rows}
    if wrong := [row.id for row in shown.raw if stored.get(row.id, row.text) != row.text]:
        ledger.violated(shown.run.id, "holds other words than are stored:", wrong)
    held = {row.id for row in shown.raw}
    if missing := [row.id for row in shown.raw if row.run_id == shown.run.id and row.id not in stored]:
        ledger.violated(shown.run.id, "holds rows of its own that are not stored:", missing)
    raw = {row.id for row in rows if not any(covers(entry, row) for entry in shown.log.active)}
    if wrong := (raw - held) | (held & (stored.keys() - raw)):
        ledger.violated(shown.run.id, "should hold other rows than", sorted(held), "which differ in", sorted(wrong))
    if (told := active["observations"]["tokens"]) != (counted := _words(shown.log.active)):
        ledger.violated(shown.run.id, "the status says", told, "tokens of notes, a recount", counted)
    if shown.status["windows"]["buffered"]["observations"]["messageTokens"] > active["messages"]["tokens"]:
        ledger.violated(shown.run.id, "the status has more buffered than there is")


def _words(entries: Sequence[Observation]) -> int:
    return sum(len(entry.text.split()) for entry in entries)


# -- the end


async def check_end(ledger: Ledger, storage: Storage, threads: Sequence[str], keys: Sequence[str]) -> None:
    """What is left when everything is settled."""
    for key in keys:
        await _check_key(ledger, storage, key)
    for thread in threads:
        await _check_thread(ledger, storage, thread, keys)


async def _check_thread(ledger: Ledger, storage: Storage, thread: str, keys: Sequence[str]) -> None:
    rows = await storage.list_messages(thread)
    logs = [log for key in keys if (log := await storage.get_log(key)) is not None]
    entries = [entry for log in logs for entry in log.entries]
    for row in rows:
        _find_gone(ledger, said_by(row) + " " + (row.sent.text if row.sent else ""), f"row {row.id}")
        if sum(covers(entry, row) for entry in entries) > 1:
            ledger.violated("covered twice:", row.id)
    for entry in entries:
        if entry.run_id is not None:
            ledger.violated("an entry of a run that is over:", entry.id, entry.run_id)
        for source in entry.sources:
            inside = [r for r in rows if source.first_seq <= (r.seq or 0) <= source.last_seq]
            if source.thread_id == thread and digest_rows(inside) != source.digest:
                ledger.violated("made from other words than are stored:", entry.id, source)
    kept = await storage.get_thread(thread)
    _find_gone(ledger, kept.title if kept is not None else "", f"the title of {thread}")
    _check_kept(ledger, thread, [row.id for row in rows])


def _check_kept(ledger: Ledger, thread: str, ids: Sequence[str]) -> None:
    for run in ledger.runs.values():
        if run.thread != thread or run.outcome != "committed" or run.disturbed:
            continue
        if missing := [id for id in run.rows if id not in ids and id not in ledger.removed]:
            ledger.violated(run.id, "was committed, but is not stored:", missing)
        places = [ids.index(id) for id in run.rows if id in ids and id not in ledger.removed]
        if places != sorted(places):
            ledger.violated(run.id, "is stored in another order")


async def _check_key(ledger: Ledger, storage: Storage, key: str) -> None:
    log = await storage.get_log(key)
    generations = await storage.list_generations(key)
    for generation in [*generations, *([log] if log is not None else [])]:
        waiting = [generation.reflection.entry] if generation.reflection else []
        for entry in [*generation.entries, *waiting]:
            words = " ".join(filter(None, (entry.text, entry.current_task, entry.suggested_response)))
            _find_gone(ledger, words, f"generation {generation.generation} of {key}")
        _find_gone(ledger, str(generation.hints), f"the hints of {key}")
    for event in await storage.list_events(key, limit=10_000):
        _find_gone(ledger, str(event.data), f"event {event.seq} {event.type} of {key}")


def _find_gone(ledger: Ledger, text: str, where: str) -> None:
    for mark in marks_of(text):
        if why := ledger.gone.get(mark):
            ledger.violated(mark, "is in", where, "though", why)
