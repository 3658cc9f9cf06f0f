"""Files as text: base64, ``data:`` URLs (RFC 2397), and the audio formats of chat completions."""

from __future__ import annotations

from base64 import b64decode, b64encode
from urllib.parse import unquote, unquote_to_bytes

from diarist.encoding import writable
from diarist.messages import FilePart

_AUDIO_TYPES = {"mp3": "audio/mpeg"}


def url_of(part: FilePart) -> str:
    """Return the URL of a file; for one with bytes, a ``data:`` URL."""
    if part.data is None:
        return part.url or ""
    return f"data:{part.media_type};base64,{b64encode(part.data).decode()}"


def read_data_url(url: str) -> tuple[str, bytes] | None:
    """Return the media type, which may be empty, and the bytes of a ``data:`` URL; None if it cannot be decoded."""
    head, comma, data = url.partition(",")
    if not head.startswith("data:") or not comma:
        return None
    media_type, *options = [field.strip() for field in head.removeprefix("data:").split(";")]
    encoded = "base64" in map(str.lower, options)
    decoded = decode_base64(unquote(data)) if encoded else unquote_to_bytes(writable(data))
    return None if decoded is None else (media_type, decoded)


def decode_base64(text: object) -> bytes | None:
    """Return the bytes of a text in base64, of either alphabet, with or without line breaks and padding; None for other
    values."""
    if not isinstance(text, str):
        return None
    letters = "".join(text.split()).replace("-", "+").replace("_", "/")
    try:
        return b64decode(letters + "=" * (-len(letters) % 4), validate=True)
    except ValueError:
        return None


def audio_type(format: str) -> str:
    """Return the media type of an audio format of chat completions, such as ``wav`` or ``mp3``."""
    return _AUDIO_TYPES.get(format, f"audio/{format}")
