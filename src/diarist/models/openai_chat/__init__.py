"""A lean client for OpenAI's chat completions and compatible servers.

``connections`` keeps a pool of connections per event loop, ``sse`` splits bytes into events, and ``reader`` turns
events into chunks. Differences between servers are data (``dialects``).
"""

from diarist.models.openai_chat.dialects import DIALECTS, Dialect, dialect_for
from diarist.models.openai_chat.model import OpenAIChatModel

__all__ = ["DIALECTS", "Dialect", "OpenAIChatModel", "dialect_for"]
