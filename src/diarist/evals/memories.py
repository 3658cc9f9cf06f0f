"""The memories that systems made, and their contexts, in folders that runs with other readers share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from diarist.evals.items import Context, History, Question, Session
from diarist.evals.progress import Stage
from diarist.evals.records import Record, Records, digest, file_name, read_text, write_text
from diarist.evals.systems.base import Closes, System, TakesNotes
from diarist.evals.work import Worker
from diarist.tokens import default_counter


class Memories:
    """The memories of one system.

    Args:
        name: The system's.
        number: The run, if each has memories of its own; else 0.
        folder: Keeps them.
        sessions: Records of the ingestion, which systems with one memory share.
        system: Gets the sessions.
        questions_of: Returns the questions of a history whose contexts are taken.

    Attributes:
        contexts: Records of contexts, by what the question asks and when (``_key``), since other versions of the data
            give its id to another question.
    """

    def __init__(
        self,
        name: str,
        number: int,
        folder: Path,
        sessions: Records,
        *,
        system: System,
        questions_of: Callable[[History], Sequence[Question]],
        worker: Worker,
    ) -> None:
        self.name, self.number, self.folder = name, number, folder
        self.system, self._sessions, self._questions_of, self._worker = system, sessions, questions_of, worker
        self.contexts = Records(folder / f"contexts-{file_name(name)}.jsonl", "key")

    @property
    def takes_notes(self) -> bool:
        """Return True if the system can list the memories of a session."""
        return isinstance(self.system, TakesNotes)

    async def ingest(self, history: History, stage: Stage) -> bool:
        """Give the system the sessions that it does not have yet, and take the contexts of questions in between.

        Returns False if it had all sessions. Raises DiaristError as ``Worker.do``.
        """
        new = False
        await self._take_contexts(history, 0)
        for place, session in enumerate(history.sessions, 1):
            before = self._is_done(self._sessions.get(history.id, session.id))
            if not before:
                record = {"history": history.id, "session": session.id, "run": self._worker.run_id}

                async def add(session: Session = session) -> Record:
                    await self.system.add(history.id, session)
                    return {}

                await self._worker.do(self._sessions, record, add)
                new = True
            done = self._sessions.get(history.id, session.id)
            if done is None:  # the budget is spent
                break
            stage.advance(before=before)
            if "error" in done:
                for _ in history.sessions[place:]:
                    stage.advance(before=True)
                break
            await self._take_contexts(history, place)
        return new

    async def _take_contexts(self, history: History, place: int) -> None:
        """Take the contexts of the questions that come after ``place`` sessions."""
        for question in self._questions_of(history):
            if question.after != place or (question.asks == "notes" and not self.takes_notes):
                continue
            if self._is_done(self.context(history, question)):
                continue
            if place < len(history.sessions) and self._sessions.get(history.id, history.sessions[place].id) is not None:
                continue  # the memory already knows what came later

            async def take(question: Question = question) -> Record:
                tools: list[str] = []
                if question.asks == "notes":
                    assert isinstance(self.system, TakesNotes)
                    text = "\n".join(await self.system.notes(history.id, question.session))
                else:
                    context = await self.system.context(history.id, question)
                    text, tools = context.text, [tool.name for tool in context.tools]
                run = f"-run{self.number}" if self.number else ""
                hashed = digest(text)  # in the name, so that no context ever replaces another one
                file = f"contexts/{file_name(self.name)}{run}/{file_name(question.id)}-{hashed[:8]}.txt"
                write_text(self.folder / file, text)
                return {"file": file, "sha256": hashed, "tokens": default_counter().count(text), "tools": tools}

            record = {
                "key": _key(history, question),
                "history": history.id,
                "question": question.id,
                "run": self._worker.run_id,
            }
            await self._worker.do(self.contexts, record, take)

    def _is_done(self, record: Record | None) -> bool:
        """Return True if the work need not be done (again). What failed in another run is tried again in this one."""
        failed_elsewhere = record is not None and "error" in record and record["run"] != self._worker.run_id
        return self._worker.is_done(record) and not failed_elsewhere

    def context(self, history: History, question: Question) -> Record | None:
        """Return the record of the context that was taken for a question; None if there is none, or no file."""
        found = self.contexts.get(_key(history, question))
        return found if found is None or "error" in found or (self.folder / found["file"]).is_file() else None

    def failure(self, history: str) -> str | None:
        """Return why the ingestion of a history failed, or None."""
        found = (record for record in self._sessions if record["history"] == history and "error" in record)
        return next((f"session {record['session']}: {record['error']}" for record in found), None)

    def text(self, kept: Record) -> str:
        """Return the text of a context."""
        return read_text(self.folder / str(kept["file"]))

    async def live(self, history: History, question: Question) -> Context:
        """Return the context again, with its tools."""
        return await self.system.context(history.id, question)

    def records_of(self, histories: Iterable[str]) -> list[Record]:
        """Return the records of the ingestion of these histories, with the attempts of this run that failed."""
        wanted = set(histories)
        return [
            record
            for record in self._sessions.written
            if record["history"] in wanted
            and (
                record["run"] == self._worker.run_id
                or record is self._sessions.get(record["history"], record["session"])
            )
        ]

    async def close(self) -> None:
        """Close the system."""
        if isinstance(self.system, Closes):
            await self.system.close()


def _key(history: History, question: Question) -> str:
    """Return a hash of everything that a context depends on, besides the memory."""
    parts = (history.id, question.text, question.date, question.asks, question.session, str(question.after))
    return digest("\0".join(parts))
