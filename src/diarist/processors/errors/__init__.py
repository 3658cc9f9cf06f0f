"""Processors that repair what a provider refuses, and repeat what failed in passing."""

from diarist.processors.errors.prefill_error_handler import PrefillErrorHandler
from diarist.processors.errors.provider_history_compat import ProviderHistoryCompat
from diarist.processors.errors.rules.base import CompatRule
from diarist.processors.errors.stream_error_retry import StreamErrorRetry

__all__ = ["CompatRule", "PrefillErrorHandler", "ProviderHistoryCompat", "StreamErrorRetry"]
