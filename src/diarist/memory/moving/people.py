"""The part of ``Memory`` with which people take threads out to a file, and bring them in."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping

from diarist.exceptions import InputError
from diarist.memory.moving.exporting import Exporter
from diarist.memory.moving.importing import Existing, Importer
from diarist.memory.moving.lines import Lines, Moved, items_of
from diarist.memory.threads import Threads
from diarist.messages import Json
from diarist.storage.codec import check_names


class Moving(Threads):
    """Threads as JSON lines; ``memory/moving/lines.py`` describes the format."""

    async def export_thread(self, thread: str, *, resource: str | None = None) -> AsyncGenerator[str, None]:
        """A thread as lines of JSON, each with its end: messages, metadata, the diary with its generations, and a
        working memory of its own.

        With ``scope="resource"`` the diary is not the thread's, and is not in it: where the lines come in, the
        messages are raw and are observed anew. ``export_threads(resource=...)`` has it.

        Raises:
            NotFoundError: There is no such thread.
            InputError: It belongs to another resource.
        """
        found = await self._thread(thread, resource)
        async for line in Exporter(self.storage, self.counter).one(found):
            yield line

    async def export_threads(
        self, *, resource: str | None = None, metadata: Mapping[str, Json] | None = None
    ) -> AsyncGenerator[str, None]:
        """All threads as lines of JSON, with what is kept for their resources as a whole: metadata, working memory
        and the diary.

        Messages are read page by page, so memory does not grow with them. Two exports of the same content are
        identical, byte for byte, in whatever storage it lies.

        Args:
            resource: Whose; by default everybody's.
            metadata: Only threads that have all these values; then nothing of resources as a whole.
        """
        check_names(resource=resource)
        async for line in Exporter(self.storage, self.counter).many(resource, metadata):
            yield line

    async def import_threads(
        self,
        lines: Lines,
        *,
        resource: str | None = None,
        existing: Existing = "refuse",
        on_progress: Callable[[Moved], None] | None = None,
    ) -> Moved:
        """Bring in what ``export_thread`` or ``export_threads`` wrote, such as an open file of it.

        Each thread comes in whole or not at all. Where the import fails, the threads before the failure are there.

        Args:
            resource: Refuse threads of any other resource: for files that users hand in.
            existing: ``"refuse"`` a thread that is there already, or ``"skip"`` it: the way to go on after a failure.
            on_progress: Called with the numbers so far, after every 500 messages and every thread.

        Returns:
            How many threads, messages and resources are new, and the ids of threads that were skipped.

        Raises:
            InputError: It is no such file, it is cut off or damaged (names the line), or another resource's.
            ConflictError: A thread is there already; or its resource has a diary or a working memory of its own.
            ThreadBusyError: Somebody else is making one of the threads, or was killed at it less than a minute ago.
        """
        if existing not in ("refuse", "skip"):
            raise InputError(f"existing is 'refuse' or 'skip', not {existing!r}")
        check_names(resource=resource)
        async with Importer(
            self.storage,
            self.counter,
            resource=resource,
            existing=existing,
            derive=self._thread_added,
            on_progress=on_progress or (lambda moved: None),
        ) as importer:
            async for item in items_of(lines):
                await importer.take(item)
        return importer.moved
