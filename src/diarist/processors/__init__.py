"""Processors: hooks into every stage of a run, and the built-in processors.

A built-in processor raises ConfigError when it is made with an option that it cannot use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diarist.lazy import lazy_names
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
    from diarist.processors.builtin.prompt_limits import TokenLimiter, ToolCallFilter
    from diarist.processors.builtin.provider_errors import PrefillErrorHandler, StreamErrorRetry
    from diarist.processors.builtin.provider_history_compat import CompatRule, ProviderHistoryCompat
    from diarist.processors.builtin.regex_filter import RegexFilter
    from diarist.processors.builtin.response_cache import InMemoryCache, ResponseCache, StorageCache
    from diarist.processors.builtin.steps import EnsureFinalResponse, PrepareStep
    from diarist.processors.builtin.structured_output import StructuredOutput
    from diarist.processors.builtin.tool_search import ToolSearchProcessor
    from diarist.processors.builtin.unicode_normalizer import UnicodeNormalizer
    from diarist.processors.compose import Branch, Parallel, Sequence
    from diarist.processors.functions import processor
    from diarist.processors.guardrails.classifier import ModelClassifier, Verdict
    from diarist.processors.guardrails.language_detector import LanguageDetector
    from diarist.processors.guardrails.moderation import ModerationProcessor
    from diarist.processors.guardrails.pii_detector import Detection, PIIDetector, presidio
    from diarist.processors.guardrails.prompt_injection_detector import PromptInjectionDetector
    from diarist.processors.guardrails.system_prompt_scrubber import SystemPromptScrubber

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

if not TYPE_CHECKING:  # type checkers would otherwise accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        __all__,
        {
            "builtin.batch_parts": "BatchParts",
            "builtin.cost_guard": "CostGuard InMemoryLedger StorageLedger",
            "builtin.prompt_limits": "TokenLimiter ToolCallFilter",
            "builtin.provider_errors": "PrefillErrorHandler StreamErrorRetry",
            "builtin.provider_history_compat": "CompatRule ProviderHistoryCompat",
            "builtin.regex_filter": "RegexFilter",
            "builtin.response_cache": "InMemoryCache ResponseCache StorageCache",
            "builtin.steps": "EnsureFinalResponse PrepareStep",
            "builtin.structured_output": "StructuredOutput",
            "builtin.tool_search": "ToolSearchProcessor",
            "builtin.unicode_normalizer": "UnicodeNormalizer",
            "compose": "Branch Parallel Sequence",
            "functions": "processor",
            "guardrails.classifier": "ModelClassifier Verdict",
            "guardrails.language_detector": "LanguageDetector",
            "guardrails.moderation": "ModerationProcessor",
            "guardrails.pii_detector": "Detection PIIDetector presidio",
            "guardrails.prompt_injection_detector": "PromptInjectionDetector",
            "guardrails.system_prompt_scrubber": "SystemPromptScrubber",
        },
    )
