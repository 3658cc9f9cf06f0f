"""``output_type``, as the agent knows it."""

from diarist.models.output_type import OutputType

__all__ = ["OutputType"]
