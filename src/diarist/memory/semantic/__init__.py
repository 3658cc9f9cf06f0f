"""Semantic recall: find messages by meaning, and show them to the model with a related question."""

from diarist.memory.semantic.config import SemanticRecallConfig

__all__ = ["SemanticRecallConfig"]
