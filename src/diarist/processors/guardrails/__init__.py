"""Guardrails: processors that judge what comes in and what goes out."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diarist.processors.guardrails.classifier import Classify, ModelClassifier
    from diarist.processors.guardrails.language import LanguageDetector
    from diarist.processors.guardrails.moderation import ModerationProcessor
    from diarist.processors.guardrails.pii import Detect, Detection, PIIDetector
    from diarist.processors.guardrails.presidio_detector import presidio
    from diarist.processors.guardrails.prompt_injection import PromptInjectionDetector
    from diarist.processors.guardrails.system_prompt_scrubber import SystemPromptScrubber
    from diarist.processors.guardrails.verdict import Verdict

_HOMES = {
    "Classify": "classifier",
    "Detect": "pii",
    "Detection": "pii",
    "LanguageDetector": "language",
    "ModelClassifier": "classifier",
    "ModerationProcessor": "moderation",
    "PIIDetector": "pii",
    "PromptInjectionDetector": "prompt_injection",
    "SystemPromptScrubber": "system_prompt_scrubber",
    "Verdict": "verdict",
    "presidio": "presidio_detector",
}

__all__ = [
    "Classify",
    "Detect",
    "Detection",
    "LanguageDetector",
    "ModelClassifier",
    "ModerationProcessor",
    "PIIDetector",
    "PromptInjectionDetector",
    "SystemPromptScrubber",
    "Verdict",
    "presidio",
]


def __getattr__(name: str) -> Any:
    """Each guardrail is loaded when it is used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
