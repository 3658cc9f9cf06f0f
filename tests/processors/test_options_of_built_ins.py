"""Built-in processors refuse options of the wrong type at construction, by name."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from diarist.exceptions import ConfigError
from diarist.processors import (
    CompatRule,
    CostGuard,
    EnsureFinalResponse,
    ModelClassifier,
    Parallel,
    PrefillErrorHandler,
    ProviderHistoryCompat,
    RegexFilter,
    ResponseCache,
    StorageCache,
    StorageLedger,
    StreamErrorRetry,
    TokenLimiter,
    ToolCallFilter,
    ToolSearchProcessor,
    UnicodeNormalizer,
)
from diarist.testing import ScriptedModel

if TYPE_CHECKING:
    from decimal import Decimal

WRONG: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (TokenLimiter, {"limit": "100"}, "TokenLimiter: limit must be a number, not '100'"),
    (TokenLimiter, {"limit": 9, "encoding": 5}, "TokenLimiter: encoding must be an object with the method 'count'"),
    (CostGuard, {"max_cost": "1"}, "CostGuard: max_cost must be a number, not '1'"),
    (CostGuard, {"max_cost": 1, "ledger": 5}, "CostGuard: ledger must be an object with the method 'spent', not 5"),
    (EnsureFinalResponse, {"max_steps": "5"}, "max_steps must be a whole number from 1 on, not '5'"),
    (ResponseCache, {"store": 5}, "ResponseCache: store must be an object with the method 'get', not 5"),
    (StorageCache, {"storage": "cache.db"}, "storage must be a Storage, such as SQLiteStorage"),
    (StorageLedger, {"storage": "costs.db"}, "storage must be a Storage, such as SQLiteStorage"),
    (StreamErrorRetry, {"max_retries": "1"}, "StreamErrorRetry: max_retries must be a whole number from 0 on, not '1'"),
    (StreamErrorRetry, {"matchers": "foo"}, "StreamErrorRetry: matchers must be a list of functions, not 'foo'"),
    (
        CompatRule,
        {"name": "x", "fix": bool, "error_patterns": "tool_use"},
        "compatibility rule 'x': error_patterns must be a list of patterns, not 'tool_use'",
    ),
    (CompatRule, {"name": "x", "fix": bool, "error_patterns": [5]}, "compatibility rule 'x': 5 is not a valid pattern"),
    (CompatRule, {"name": "x", "fix": 5, "error_patterns": ["a"]}, "fix must be a function, not 5"),
    (ProviderHistoryCompat, {"additional_rules": 5}, "additional_rules must be a list of CompatRule, not 5"),
    (ToolCallFilter, {"keep_recent": 1.5}, "ToolCallFilter: keep_recent must be a whole number from 0 on, not 1.5"),
    (ToolCallFilter, {"exclude": 5}, "ToolCallFilter: exclude must be a list of texts, not 5"),
    (ToolSearchProcessor, {"tools": [abs], "top_k": 1.5}, "top_k must be a whole number from 1 on, not 1.5"),
    (CostGuard, {"max_cost": 1, "price": 0.5}, "CostGuard: price must be a function, not 0.5"),
    (partial(Parallel, UnicodeNormalizer()), {"merge": "first"}, "Parallel: merge must be a function, not 'first'"),
    (
        partial(ModelClassifier, ScriptedModel(), task="Judge."),
        {"categories": ["hate"]},
        r"ModelClassifier: categories must be a mapping of names to descriptions, not \['hate'\]",
    ),
    (PrefillErrorHandler, {"text": None}, "PrefillErrorHandler: text must be a text, not None"),
    (UnicodeNormalizer, {"keep_emoji": "no"}, "UnicodeNormalizer: keep_emoji must be True or False, not 'no'"),
]


@pytest.mark.parametrize(("make", "options", "says"), WRONG)
def test_an_option_of_the_wrong_type_is_refused_by_name(
    make: Callable[..., Any], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        make(**options)


class Budget(IntEnum):
    """Numbers of a user with names."""

    PROMPT = 8_000


def test_a_limit_may_be_a_number_with_a_name_or_a_product() -> None:
    assert TokenLimiter(Budget.PROMPT).limit == 8_000
    assert TokenLimiter(0.8 * 128_000)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="limit must be a number, not True"):
        TokenLimiter(True)


class PerTenant(RegexFilter):
    """A guardrail of a user, with attributes of its own."""

    tenant: str
    price: Decimal | None = None

    def __init__(self, tenant: str, **options: Any) -> None:
        super().__init__(**options)
        self.tenant = tenant


def test_only_the_inherited_options_of_a_subclass_are_checked() -> None:
    assert PerTenant("acme", strategy="block").tenant == "acme"
    with pytest.raises(ConfigError, match="PerTenant: strategy must be one of 'block', 'redact', 'warn', not 'hide'"):
        PerTenant("acme", strategy="hide")
