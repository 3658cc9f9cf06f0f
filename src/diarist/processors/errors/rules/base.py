"""What a compatibility rule is."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from diarist.exceptions import ConfigError, ModelAPIError, ModelError
from diarist.messages import Message, Prompt
from diarist.models.base import Model
from diarist.processors.builtin.options import function

Fix = Callable[[list[Message]], bool]
ApplyToPrompt = Callable[[Prompt, Model], Prompt | None]


@dataclass(frozen=True, kw_only=True)
class CompatRule:
    """One incompatibility and its cure: before a call, or after the provider has refused it.

    Attributes:
        name: Names the rule in logs and errors; unique in its list.
        error_patterns: Regular expressions (strings ignore case) searched for in the provider's message and
            body; one that is found has ``fix`` called.
        fix: ``fix(messages) -> bool``: repairs the conversation's messages in place, and returns True when it
            changed something, so that the call is worth another try. The repair is stored with the run.
        apply_to_prompt: ``apply_to_prompt(prompt, model) -> Prompt | None``: another prompt for this one call,
            or None to leave it. Never stored.

    Raises:
        ConfigError: No name, nothing to do, ``fix`` without patterns or patterns without ``fix``, or a pattern
            that is no regular expression.
    """

    name: str
    error_patterns: Sequence[str | re.Pattern[str]] = ()
    fix: Fix | None = None
    apply_to_prompt: ApplyToPrompt | None = None
    _compiled: tuple[re.Pattern[str], ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("a compatibility rule needs a name")
        if self.fix is None and self.apply_to_prompt is None:
            raise ConfigError(f"compatibility rule {self.name!r} does nothing: give fix or apply_to_prompt")
        if (self.fix is None) != (not self.error_patterns):
            raise ConfigError(f"compatibility rule {self.name!r}: fix and error_patterns go together")
        owner = f"compatibility rule {self.name!r}"
        function(owner, "fix", self.fix)
        function(owner, "apply_to_prompt", self.apply_to_prompt)
        if not isinstance(self.error_patterns, list | tuple):
            raise ConfigError(f"{owner}: error_patterns must be a list of patterns, not {self.error_patterns!r}")
        object.__setattr__(self, "_compiled", tuple(self._compile(pattern) for pattern in self.error_patterns))

    def _compile(self, pattern: str | re.Pattern[str]) -> re.Pattern[str]:
        if isinstance(pattern, re.Pattern):
            return pattern
        try:
            return re.compile(pattern, re.IGNORECASE)
        except (re.error, TypeError) as error:
            raise ConfigError(f"compatibility rule {self.name!r}: {pattern!r} is no pattern: {error}") from error

    def matches(self, error: ModelError) -> bool:
        """Whether the provider's error is this rule's."""
        body = error.body if isinstance(error, ModelAPIError) else ""
        return any(pattern.search(f"{error}\n{body}") for pattern in self._compiled)
