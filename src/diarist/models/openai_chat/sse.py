"""Parse server-sent events from bytes, however the network split them."""

from __future__ import annotations

from codecs import BOM_UTF8


class EventParser:
    """Reads the data of events and skips names, ids, comments and a byte order mark. Data of an event with the name
    ``error`` becomes ``{"error": data}``.

    Lines end in LF or CRLF; the space after ``data:`` may be missing; an event's data may span lines.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        """The unfinished line."""
        self._data: list[bytes] = []
        """Data lines of the unfinished event."""
        self._is_error = False

    def feed(self, received: bytes) -> list[bytes]:
        """Return the data of every event that ``received`` completes."""
        if b"\n" not in received:  # a long line is split once, at its end
            self._line += received
            return []
        if self._line:
            received = bytes(self._line) + received
            self._line.clear()
        lines = received.split(b"\n")
        self._line += lines.pop()
        events: list[bytes] = []
        data = self._data
        for ended in lines:
            line = ended.removesuffix(b"\r").removeprefix(BOM_UTF8)
            if not line:
                if data:
                    event = data[0] if len(data) == 1 else b"\n".join(data)
                    events.append(b'{"error":%b}' % event if self._is_error else event)
                    data.clear()
                self._is_error = False
            elif line.startswith(b"data:"):
                data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            elif line.startswith(b"event:"):
                self._is_error = line[6:].strip() == b"error"
        return events

    def end(self) -> list[bytes]:
        """Return the data of the last event if no blank line follows it; the data may be cut off."""
        return self.feed(b"\n\n")
