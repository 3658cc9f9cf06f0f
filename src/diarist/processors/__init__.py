"""Processors: hooks into every stage of a run, and the built-in processors."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from diarist.processors.base import (
    DROP,
    APIErrorResult,
    InputResult,
    InputStepResult,
    LLMRequestResult,
    OutputResult,
    ProcessAPIErrorArgs,
    ProcessInputArgs,
    ProcessInputStepArgs,
    ProcessLLMRequestArgs,
    ProcessLLMResponseArgs,
    Processor,
    ProcessorArgs,
    ProcessOutputResultArgs,
    ProcessOutputStepArgs,
    ProcessOutputStreamArgs,
    ProcessToolCallArgs,
    ProcessToolResultArgs,
    StepResult,
    ToolCallResult,
    ToolResultResult,
)

if TYPE_CHECKING:
    from diarist.processors.builtin.batch_parts import BatchParts
    from diarist.processors.builtin.cost_guard import CostGuard, InMemoryLedger, StorageLedger
    from diarist.processors.builtin.ensure_final_response import EnsureFinalResponse
    from diarist.processors.builtin.prepare_step import PrepareStep
    from diarist.processors.builtin.regex_filter import RegexFilter
    from diarist.processors.builtin.response_cache import InMemoryCache, ResponseCache, StorageCache
    from diarist.processors.builtin.structured_output import StructuredOutput
    from diarist.processors.builtin.token_limiter import TokenLimiter
    from diarist.processors.builtin.tool_call_filter import ToolCallFilter
    from diarist.processors.builtin.tool_search import ToolSearchProcessor
    from diarist.processors.builtin.unicode_normalizer import UnicodeNormalizer
    from diarist.processors.compose import Branch, Parallel, Sequence
    from diarist.processors.errors.compat_rules import CompatRule
    from diarist.processors.errors.prefill_error_handler import PrefillErrorHandler
    from diarist.processors.errors.provider_history_compat import ProviderHistoryCompat
    from diarist.processors.errors.stream_error_retry import StreamErrorRetry
    from diarist.processors.functions import processor
    from diarist.processors.guardrails.classifier import ModelClassifier, Verdict
    from diarist.processors.guardrails.language_detector import LanguageDetector
    from diarist.processors.guardrails.moderation import ModerationProcessor
    from diarist.processors.guardrails.pii_detector import Detection, PIIDetector, presidio
    from diarist.processors.guardrails.prompt_injection_detector import PromptInjectionDetector
    from diarist.processors.guardrails.system_prompt_scrubber import SystemPromptScrubber

_BUILT_IN = {
    "BatchParts": "diarist.processors.builtin.batch_parts",
    "Branch": "diarist.processors.compose",
    "CompatRule": "diarist.processors.errors.compat_rules",
    "CostGuard": "diarist.processors.builtin.cost_guard",
    "Detection": "diarist.processors.guardrails.pii_detector",
    "EnsureFinalResponse": "diarist.processors.builtin.ensure_final_response",
    "InMemoryCache": "diarist.processors.builtin.response_cache",
    "InMemoryLedger": "diarist.processors.builtin.cost_guard",
    "LanguageDetector": "diarist.processors.guardrails.language_detector",
    "ModelClassifier": "diarist.processors.guardrails.classifier",
    "ModerationProcessor": "diarist.processors.guardrails.moderation",
    "PIIDetector": "diarist.processors.guardrails.pii_detector",
    "Parallel": "diarist.processors.compose",
    "PrefillErrorHandler": "diarist.processors.errors.prefill_error_handler",
    "PrepareStep": "diarist.processors.builtin.prepare_step",
    "PromptInjectionDetector": "diarist.processors.guardrails.prompt_injection_detector",
    "ProviderHistoryCompat": "diarist.processors.errors.provider_history_compat",
    "RegexFilter": "diarist.processors.builtin.regex_filter",
    "ResponseCache": "diarist.processors.builtin.response_cache",
    "Sequence": "diarist.processors.compose",
    "StorageCache": "diarist.processors.builtin.response_cache",
    "StorageLedger": "diarist.processors.builtin.cost_guard",
    "StreamErrorRetry": "diarist.processors.errors.stream_error_retry",
    "StructuredOutput": "diarist.processors.builtin.structured_output",
    "SystemPromptScrubber": "diarist.processors.guardrails.system_prompt_scrubber",
    "TokenLimiter": "diarist.processors.builtin.token_limiter",
    "ToolCallFilter": "diarist.processors.builtin.tool_call_filter",
    "ToolSearchProcessor": "diarist.processors.builtin.tool_search",
    "UnicodeNormalizer": "diarist.processors.builtin.unicode_normalizer",
    "Verdict": "diarist.processors.guardrails.classifier",
    "presidio": "diarist.processors.guardrails.pii_detector",
    "processor": "diarist.processors.functions",
}
"""The module of each name that is loaded at its first use."""

__all__ = [
    "DROP",
    "APIErrorResult",
    "BatchParts",
    "Branch",
    "CompatRule",
    "CostGuard",
    "Detection",
    "EnsureFinalResponse",
    "InMemoryCache",
    "InMemoryLedger",
    "InputResult",
    "InputStepResult",
    "LLMRequestResult",
    "LanguageDetector",
    "ModelClassifier",
    "ModerationProcessor",
    "OutputResult",
    "PIIDetector",
    "Parallel",
    "PrefillErrorHandler",
    "PrepareStep",
    "ProcessAPIErrorArgs",
    "ProcessInputArgs",
    "ProcessInputStepArgs",
    "ProcessLLMRequestArgs",
    "ProcessLLMResponseArgs",
    "ProcessOutputResultArgs",
    "ProcessOutputStepArgs",
    "ProcessOutputStreamArgs",
    "ProcessToolCallArgs",
    "ProcessToolResultArgs",
    "Processor",
    "ProcessorArgs",
    "PromptInjectionDetector",
    "ProviderHistoryCompat",
    "RegexFilter",
    "ResponseCache",
    "Sequence",
    "StepResult",
    "StorageCache",
    "StorageLedger",
    "StreamErrorRetry",
    "StructuredOutput",
    "SystemPromptScrubber",
    "TokenLimiter",
    "ToolCallFilter",
    "ToolCallResult",
    "ToolResultResult",
    "ToolSearchProcessor",
    "UnicodeNormalizer",
    "Verdict",
    "presidio",
    "processor",
]


def __getattr__(name: str) -> Any:
    if name not in _BUILT_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_BUILT_IN[name]), name)
    globals()[name] = value
    return value
