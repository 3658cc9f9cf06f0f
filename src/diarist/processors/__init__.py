"""Processors: hooks into every stage of a run."""

from diarist.processors.base import (
    DROP,
    InputResult,
    InputStepResult,
    LLMRequestResult,
    OutputResult,
    ProcessInputArgs,
    ProcessInputStepArgs,
    ProcessLLMRequestArgs,
    Processor,
    ProcessorArgs,
    ProcessOutputResultArgs,
    ProcessOutputStepArgs,
    ProcessOutputStreamArgs,
    StepResult,
)

__all__ = [
    "DROP",
    "InputResult",
    "InputStepResult",
    "LLMRequestResult",
    "OutputResult",
    "ProcessInputArgs",
    "ProcessInputStepArgs",
    "ProcessLLMRequestArgs",
    "ProcessOutputResultArgs",
    "ProcessOutputStepArgs",
    "ProcessOutputStreamArgs",
    "Processor",
    "ProcessorArgs",
    "StepResult",
]
