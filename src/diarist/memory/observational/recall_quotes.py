"""Quotations in stored results of the tool ``recall``."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from diarist.memory.observational.prompt.threads import thread_label
from diarist.memory.observational.recall_tool import RECALL
from diarist.messages import Message, Part, ToolPart

_EMPTIED = "(A message that this result quoted has been forgotten.)"


class RecallQuotes:
    """Finds the results of ``recall`` that quote a thread, by the labels that the tool gives to threads and messages.

    Args:
        seqs: Only results with messages of these numbers; None: with any message, or the title.
        own: Look in results stored in the quoted thread itself, which call it "this conversation".
        title: Also results with the thread's title.
    """

    def __init__(self, thread_id: str, seqs: Collection[int] | None, *, own: bool, title: bool = False) -> None:
        number = r"\d+" if seqs is None else f"(?:{'|'.join(map(str, sorted(seqs)))})"
        labels = {thread_label(thread_id, obscured=obscured) for obscured in (True, False)}
        name = f"(?:{'|'.join(map(re.escape, sorted(labels)))})"
        if own:  # search, browse, and one part of a message
            forms = [
                rf"^- \S+ \S+ \[#{number}\]",
                rf"\A(?!(?s:.*)^Thread )(?s:.*)^\[#{number}\]",
                f"^Message {number} of this conversation,",
            ]
        else:
            forms = [
                rf"^- .*?\(thread {name}\) \[#{number}\]",
                rf"\A(?:Observation .*\n)?Thread {name}:(?s:.*)^\[#{number}\]",
                f"^Message {number} of thread {name},",
            ]
        forms += [f"^- {name}[ ,]"] if seqs is None or title else []  # a list of threads
        self._pattern = re.compile("|".join(forms), re.MULTILINE)

    def is_in(self, row: Message) -> bool:
        """Return True if a result in the row quotes the thread."""
        return any(map(self._quotes, row.parts))

    def emptied(self, row: Message) -> Message:
        """Return the row without these results."""
        return replace(
            row,
            parts=[
                replace(part, result=_EMPTIED) if isinstance(part, ToolPart) and self._quotes(part) else part
                for part in row.parts
            ],
        )

    def _quotes(self, part: Part) -> bool:
        return isinstance(part, ToolPart) and part.name == RECALL and bool(self._pattern.search(part.result_text))
