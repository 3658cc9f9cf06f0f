"""Adapt a conversation that began with one provider to another provider, by compatibility rules."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, cast

from diarist.checks import function
from diarist.exceptions import ConfigError, ModelAPIError, ModelError, described
from diarist.messages import (
    Message,
    Prompt,
    PromptMessage,
    PromptPart,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from diarist.models.base import Model
from diarist.processors.base import APIErrorResult, ProcessAPIErrorArgs, ProcessLLMRequestArgs, Processor
from diarist.processors.builtin.prompt_limits import without_parts

logger = logging.getLogger("diarist")

MAX_ID_LENGTH = 40
"""Maximum length of a repaired tool-call id. It is OpenAI's limit, so OpenAI accepts a repaired thread as well."""

_FAMILIES = {
    "openai": "openai",
    "openai-chat": "openai",
    "openai-responses": "openai",
    "azure": "openai",
    "google": "google",
    "google-gla": "google",
    "google-vertex": "google",
    "google-cloud": "google",
    "google-gcp": "google",
}
"""Provider names that share one format. A provider that is not listed is its own family."""


@dataclass(frozen=True, kw_only=True)
class CompatRule:
    """The repair of one incompatibility, applied before a call or after the provider refused a call.

    Attributes:
        name: Name of the rule in logs and errors; unique in its list.
        error_patterns: Regular expressions searched for in the provider's message and body; strings ignore case.
            If one matches, ``fix`` is called.
        fix: ``fix(messages) -> bool``: repairs the conversation's messages in place. Returns True if it changed
            something, which retries the call. The repair is stored with the run.
        apply_to_prompt: ``apply_to_prompt(prompt, model) -> Prompt | None``: returns a changed prompt for this one
            call, or None to leave the prompt unchanged. The change is never stored.
    """

    name: str
    error_patterns: Sequence[str | re.Pattern[str]] = ()
    fix: Callable[[list[Message]], bool] | None = None
    apply_to_prompt: Callable[[Prompt, Model], Prompt | None] | None = None

    def __post_init__(self) -> None:
        owner = f"compatibility rule {self.name!r}"
        if self.fix is None and self.apply_to_prompt is None:
            raise ConfigError(f"{owner} does nothing: give fix or apply_to_prompt")
        if (self.fix is None) != (not self.error_patterns):
            raise ConfigError(f"{owner}: give both fix and error_patterns, or neither")
        function(owner, "fix", self.fix)
        function(owner, "apply_to_prompt", self.apply_to_prompt)
        if not isinstance(self.error_patterns, list | tuple):
            raise ConfigError(f"{owner}: error_patterns must be a list of patterns, not {self.error_patterns!r}")
        for pattern in self.error_patterns:
            try:
                _compiled(pattern)
            except (re.error, TypeError) as error:
                raise ConfigError(f"{owner}: {pattern!r} is not a valid pattern: {error}") from error

    def matches(self, error: ModelError) -> bool:
        """Return True if one of the patterns matches the provider's error."""
        body = error.body if isinstance(error, ModelAPIError) else ""
        return any(_compiled(pattern).search(f"{error}\n{body}") for pattern in self.error_patterns)


def _compiled(pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    return pattern if isinstance(pattern, re.Pattern) else re.compile(pattern, re.IGNORECASE)


# -- the origin of a part


def _family(provider: str) -> str:
    return _FAMILIES.get(provider, provider)


def _is_anthropic(model: Model) -> bool:
    """Return True for models that use Anthropic's thinking blocks, on any platform."""
    name = model.name.lower()
    return model.provider == "anthropic" or (
        model.provider in ("bedrock", "google-vertex", "google-cloud") and ("claude" in name or "anthropic" in name)
    )


def _maker(part: TextPart | ReasoningPart | ToolCallPart) -> str | None:
    """Return the provider that created a part, if recorded."""
    if isinstance(part, ReasoningPart) and part.provider:
        return part.provider
    said = (part.provider_data or {}).get("provider")
    return said if isinstance(said, str) and said else None


def _is_own(part: TextPart | ReasoningPart | ToolCallPart, model: Model) -> bool:
    """Return True if the provider that is called created the part."""
    maker = _maker(part)
    if isinstance(part, ReasoningPart) and maker == "anthropic" and _is_anthropic(model):
        return True  # signatures of Anthropic's models are valid on every platform that offers them
    return maker is not None and _family(maker) == _family(model.provider)


# -- the built-in rules


def repair_tool_ids(messages: list[Message]) -> bool:
    """Replace tool-call ids that have characters other than letters, digits, ``_`` and ``-``.

    The new id ends with a hash of the old id. So equal ids stay equal, different ids stay different, and a call gets
    the same id in every run. Call and result are one part, so both change.
    """
    refused = [
        part for message in messages for part in message.tool_parts if not re.fullmatch(r"[a-zA-Z0-9_-]+", part.call_id)
    ]
    for part in refused:
        kept = re.sub(r"[^a-zA-Z0-9_-]", "_", part.call_id)[: MAX_ID_LENGTH - 13] or "call"
        digest = sha256(f"\0{part.call_id}".encode("utf-8", "surrogatepass")).hexdigest()[:12]
        part.call_id = f"{kept}_{digest}"
    return bool(refused)


def strip_foreign_provider_tools(prompt: Prompt, model: Model) -> Prompt | None:
    """Remove calls and results of tools that another provider ran, such as a web search.

    Text about the result stays. A call without a recorded provider counts as another provider's.
    """
    foreign = {
        part.call_id
        for message in prompt.messages
        for part in message.parts
        if isinstance(part, ToolCallPart) and part.provider_executed and not _is_own(part, model)
    }

    return without_parts(
        prompt, lambda part: isinstance(part, ToolCallPart | ToolResultPart) and part.call_id in foreign
    )


def strip_empty_for_anthropic(prompt: Prompt, model: Model) -> Prompt | None:
    """Remove signed thinking without text from earlier turns. Some platforms refuse it, and none needs it.

    The current turn keeps such blocks: newer models send their thinking in this form and check it while tools run.
    Redacted thinking stays in all turns.
    """
    if not _is_anthropic(model):
        return None
    turn = 1 + max((index for index, message in enumerate(prompt.messages) if message.role == "user"), default=-1)

    def drop(part: PromptPart) -> bool:
        if not isinstance(part, ReasoningPart) or not part.signature or part.text.strip():
            return False
        return (part.provider_data or {}).get("id") != "redacted_thinking"

    earlier = without_parts(Prompt(messages=prompt.messages[:turn]), drop)
    return None if earlier is None else Prompt(messages=[*earlier.messages, *prompt.messages[turn:]])


def drop_orphaned_item_ids(prompt: Prompt, model: Model) -> Prompt | None:
    """Remove OpenAI's item ids from texts and calls without their reasoning: OpenAI refuses such ids."""
    if _family(model.provider) != "openai":
        return None
    messages: list[PromptMessage] = []
    changed = False
    for message in prompt.messages:
        parts = list(message.parts)
        if not any(isinstance(part, ReasoningPart) and _is_own(part, model) for part in parts):
            for place, part in enumerate(parts):
                if message.role == "assistant" and isinstance(part, TextPart | ToolCallPart) and _is_own(part, model):
                    data = part.provider_data or {}
                    kept = {name: value for name, value in data.items() if name != "id"}
                    if kept != data:
                        changed = True
                        parts[place] = replace(part, provider_data=kept if kept.keys() - {"provider"} else None)
        messages.append(replace(message, parts=parts))
    return Prompt(messages=messages) if changed else None


def _reasoning_rule(name: str, is_refused: Callable[[ReasoningPart, Model], bool]) -> CompatRule:
    """Return a rule that removes the reasoning that a model's provider refuses."""

    def strip(prompt: Prompt, model: Model) -> Prompt | None:
        return without_parts(prompt, lambda part: isinstance(part, ReasoningPart) and is_refused(part, model))

    return CompatRule(name=name, apply_to_prompt=strip)


BUILT_IN_RULES = (
    CompatRule(
        name="anthropic-tool-id-format",
        error_patterns=(
            r"tool_(use|result)\.(tool_use_)?id\W.{0,40}should match pattern",
            r"tool_use_?id\W.{0,80}a-zA-Z0-9_-",
        ),
        fix=repair_tool_ids,
    ),
    # Requests to Cerebras have no field for reasoning.
    _reasoning_rule("cerebras-strip-reasoning-content", lambda part, model: model.provider == "cerebras"),
    # Anthropic accepts only its own.
    _reasoning_rule(
        "anthropic-strip-foreign-reasoning-content",
        lambda part, model: _is_anthropic(model) and not _is_own(part, model),
    ),
    CompatRule(name="strip-foreign-provider-tools", apply_to_prompt=strip_foreign_provider_tools),
    CompatRule(name="anthropic-strip-empty-signed-reasoning-content", apply_to_prompt=strip_empty_for_anthropic),
    # The provider that is called would refuse or misread what another one signed.
    _reasoning_rule(
        "strip-foreign-signed-reasoning", lambda part, model: bool(part.signature) and not _is_own(part, model)
    ),
    CompatRule(name="openai-drop-orphaned-item-ids", apply_to_prompt=drop_orphaned_item_ids),
)
"""The built-in rules, in the order in which they run. The last one checks for reasoning that the others may remove."""


class ProviderHistoryCompat(Processor[Any]):
    """Makes a conversation's history acceptable to the provider that is called.

    Rules with ``apply_to_prompt`` run before each call and change only the prompt of that call. Rules with ``fix``
    run after the provider has refused the history; they repair the stored messages, and the call is retried once.
    List the processor once, in ``processors``.

    Args:
        additional_rules: Rules of your own; they run after the built-in ones.

    The built-in rules:

    - ``anthropic-tool-id-format``: after a refusal, replaces tool-call ids that Anthropic does not accept.
    - ``cerebras-strip-reasoning-content``: removes reasoning for Cerebras, which accepts none.
    - ``anthropic-strip-foreign-reasoning-content``: removes other providers' reasoning for Anthropic.
    - ``strip-foreign-provider-tools``: removes calls of tools that another provider ran.
    - ``anthropic-strip-empty-signed-reasoning-content``: removes signed thinking without text from earlier turns.
    - ``strip-foreign-signed-reasoning``: removes reasoning that another provider signed.
    - ``openai-drop-orphaned-item-ids``: removes OpenAI's item ids from texts and calls if their reasoning is missing.

    Example::

        Agent(model="anthropic/claude-sonnet-5", processors=[ProviderHistoryCompat()])
    """

    def __init__(self, *, additional_rules: Sequence[CompatRule] = ()) -> None:
        if not isinstance(cast(Any, additional_rules), list | tuple):
            raise ConfigError(f"additional_rules must be a list of CompatRule, not {additional_rules!r}")
        self.rules: tuple[CompatRule, ...] = (*BUILT_IN_RULES, *additional_rules)
        names: set[str] = set()
        for rule in self.rules:
            if not isinstance(cast(Any, rule), CompatRule):
                raise ConfigError(f"additional_rules: {rule!r} is not a CompatRule")
            if rule.name in names:
                raise ConfigError(f"additional_rules: two rules have the name {rule.name!r}")
            names.add(rule.name)

    def create_state(self) -> set[tuple[int, str]]:
        """Return an empty set of repairs, each a step number and a rule's name."""
        return set()

    def process_llm_request(self, args: ProcessLLMRequestArgs[Any]) -> Prompt | None:
        """Apply the rules to the prompt. Raises ProcessorError, which names the rule, if a rule raises an exception."""
        prompt = args.prompt
        for rule in self.rules:
            if rule.apply_to_prompt is not None:
                with _naming(rule):
                    changed = rule.apply_to_prompt(prompt, args.model)
                if changed is not None:
                    logger.debug("compatibility rule %s changed the prompt for %s", rule.name, args.model.id)
                    prompt = changed
        return None if prompt is args.prompt else prompt

    def process_api_error(self, args: ProcessAPIErrorArgs[Any]) -> APIErrorResult | None:
        """Repair the messages that the provider refused, and request a retry; once per rule and step.

        Raises ProcessorError, which names the rule, if a rule raises an exception.
        """
        repaired = False
        for rule in self.rules:
            tried = (args.step_number, rule.name)
            if rule.fix is None or tried in args.state or not rule.matches(args.error):
                continue
            args.state.add(tried)
            with _naming(rule):
                changed = rule.fix(args.message_list.all)
            if changed:
                logger.info(
                    "compatibility rule %s repaired the history of %s", rule.name, args.thread_id or "this call"
                )
                repaired = True
        return {"retry": True} if repaired else None


@contextmanager
def _naming(rule: CompatRule) -> Generator[None]:
    """Name the rule in errors of the block."""
    try:
        yield
    except Exception as error:
        raise RuntimeError(f"compatibility rule {rule.name!r} failed: {described(error)}") from error
