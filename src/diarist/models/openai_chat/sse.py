"""Server-sent events out of bytes, however the network cut them."""

from __future__ import annotations


class EventParser:
    """Reads the data of events; names, ids and comments are skipped.

    Lines may end in LF, CRLF or CR; the space after ``data:`` may be missing; an event's data may span lines.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        """The line that has not ended yet."""
        self._data: list[bytes] = []
        """The data lines of the event that has not ended yet."""
        self._after_cr = False

    def feed(self, received: bytes) -> list[bytes]:
        """The data of every event that ``received`` completes."""
        if self._after_cr or b"\r" in received:
            received = self._with_plain_ends(received)
        if b"\n" not in received:  # a long line is joined once, when it has ended
            self._pieces.append(received)
            return []
        if self._pieces:
            self._pieces.append(received)
            received = b"".join(self._pieces)
            self._pieces.clear()
        lines = received.split(b"\n")
        if rest := lines.pop():
            self._pieces.append(rest)
        events: list[bytes] = []
        data = self._data
        for line in lines:
            if not line:
                if data:
                    events.append(data[0] if len(data) == 1 else b"\n".join(data))
                    data.clear()
            elif line.startswith(b"data:"):
                data.append(line[6:] if line.startswith(b"data: ") else line[5:])
        return events

    def end(self) -> list[bytes]:
        """What the stream's end leaves: an event without the blank line after it, perhaps cut short."""
        return self.feed(b"\n\n")

    def _with_plain_ends(self, received: bytes) -> bytes:
        if self._after_cr and received.startswith(b"\n"):  # the second half of a CRLF
            received = received[1:]
            self._after_cr = False
        if received:
            self._after_cr = received.endswith(b"\r")
        return received.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
