"""Observer and Reflector by fixed rules: offline, deterministic, without a model."""

from diarist.memory.observational.roles.extractive.observer import ExtractiveObserver
from diarist.memory.observational.roles.extractive.reflector import ExtractiveReflector

__all__ = ["ExtractiveObserver", "ExtractiveReflector"]
