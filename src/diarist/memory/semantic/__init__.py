"""Semantic recall: messages found by what they mean, and shown to the model where they matter."""

from diarist.memory.semantic.config import SemanticRecallConfig

__all__ = ["SemanticRecallConfig"]
