"""A lean client for OpenAI's chat completions and every server that speaks them.

Every chunk of an answer passes through here, so nothing is done twice: bytes to events (``sse``), events to
chunks (``reader``), and one pool of connections per event loop (``connections``). What differs between
servers is data (``dialects``).
"""

from diarist.models.openai_chat.dialects import DIALECTS, Dialect, dialect_for
from diarist.models.openai_chat.model import OpenAIChatModel

__all__ = ["DIALECTS", "Dialect", "OpenAIChatModel", "dialect_for"]
