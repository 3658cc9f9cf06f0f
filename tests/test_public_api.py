"""The names that users may rely on. A change here is a change of the public interface: say so in the changelog."""

from __future__ import annotations

import importlib

import pytest

import diarist

PUBLIC = {
    "diarist": {
        "DROP",
        "Agent",
        "AgentResult",
        "AgentStream",
        "CallOptions",
        "CancelSignal",
        "DataChunk",
        "DiaristError",
        "Memory",
        "Message",
        "Model",
        "ModelEntry",
        "ModelSettings",
        "ObservationConfig",
        "ObservationalMemoryConfig",
        "Processor",
        "ReflectionConfig",
        "ThreadRef",
        "Tool",
        "ToolContext",
        "ProcessorAbort",
        "Usage",
        "processor",
        "tool",
    },
    "diarist.agent": {"Agent", "AgentResult", "AgentStream", "CallOptions", "Rejected", "Tripwire"},
    "diarist.convert": {"to_anthropic", "to_openai", "to_ui"},
    "diarist.evals": {"Context", "History", "Question", "Session", "System"},
    "diarist.integrations.conversations": {"Conversation", "read_conversation", "read_conversations"},
    "diarist.integrations.mastra": {"mastra_lines"},
    "diarist.memory": {
        "DiaryUsage",
        "Memory",
        "MemoryContext",
        "MemoryHooks",
        "MessageHistory",
        "Moved",
        "ObservationConfig",
        "ObservationalMemory",
        "ObservationalMemoryConfig",
        "Receipt",
        "ReflectionConfig",
        "RetrievalConfig",
        "SemanticRecall",
        "SemanticRecallConfig",
        "TitleConfig",
        "Turn",
        "TurnView",
        "WorkingMemory",
        "WorkingMemoryConfig",
    },
    "diarist.models": {
        "LibraryModel",
        "Model",
        "ModelEntry",
        "ModelRequest",
        "ModelSettings",
        "OutputSchema",
        "ToolChoice",
        "cost",
        "has_credentials",
        "resolve",
    },
    "diarist.processors": {
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
    },
    "diarist.testing": {
        "AdapterConformance",
        "Reasoning",
        "Reply",
        "ScriptError",
        "ScriptedModel",
        "SearchConformance",
        "StorageConformance",
        "ToolCall",
        "VectorStoreConformance",
    },
}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_pinned(module: str) -> None:
    assert set(importlib.import_module(module).__all__) == PUBLIC[module]


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_there_and_documented(module: str) -> None:
    home = importlib.import_module(module)
    for name in home.__all__:
        value = getattr(home, name)
        if callable(value):
            assert (value.__doc__ or "").strip(), f"{module}.{name} has no docstring"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = diarist.Nothing  # type: ignore[attr-defined]
