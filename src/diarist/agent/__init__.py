"""The agent, its loop and its results."""

from diarist.agent.agent import Agent
from diarist.agent.options import CallOptions
from diarist.agent.result import AgentResult, Rejected, Tripwire
from diarist.agent.stream import AgentStream

__all__ = ["Agent", "AgentResult", "AgentStream", "CallOptions", "Rejected", "Tripwire"]
