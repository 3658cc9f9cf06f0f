"""Adapt a conversation that began with one provider to another provider."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from diarist.exceptions import ConfigError, ProcessorError, ProcessorResultError, described
from diarist.messages import Prompt
from diarist.processors.base import APIErrorResult, ProcessAPIErrorArgs, ProcessLLMRequestArgs, Processor
from diarist.processors.errors.compat_rules import BUILT_IN_RULES, CompatRule
from diarist.processors.hooks import WrongType

logger = logging.getLogger("diarist")


class ProviderHistoryCompat(Processor[Any]):
    """Makes a conversation's history acceptable to the provider that is called.

    Rules with ``apply_to_prompt`` run before each call and change only the prompt of that call. Rules with ``fix``
    run after the provider has refused the history; they repair the stored messages, and the call is retried once.
    List the processor once, in ``processors``.

    Args:
        additional_rules: Rules of your own; they run after the built-in ones.

    Raises:
        ConfigError: Two rules have the same name, or an entry is not a ``CompatRule``.

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
        """Apply the rules to the prompt.

        Raises:
            ProcessorError: A rule raised an exception; the error names the rule.
            ProcessorResultError: A rule returned neither a ``Prompt`` nor None.
        """
        prompt = args.prompt
        for rule in self.rules:
            if rule.apply_to_prompt is None:
                continue
            with self._naming(rule, "process_llm_request", args.step_number):
                changed = rule.apply_to_prompt(prompt, args.model)
                if not isinstance(cast(Any, changed), Prompt | None):
                    raise WrongType(changed, "allowed: a Prompt or None")
            if changed is not None:
                logger.debug("compatibility rule %s changed the prompt for %s", rule.name, args.model.id)
                prompt = changed
        return None if prompt is args.prompt else prompt

    def process_api_error(self, args: ProcessAPIErrorArgs[Any]) -> APIErrorResult | None:
        """Repair the messages that the provider refused, and request a retry; once per rule and step.

        Raises:
            ProcessorError: A rule raised an exception, or repaired something again after the provider refused the
                retry; the error names the rule.
            ProcessorResultError: ``fix`` did not return a bool.
        """
        repaired = False
        for rule in self.rules:
            if rule.fix is None or not rule.matches(args.error):
                continue
            key = (args.step_number, rule.name)
            with self._naming(rule, "process_api_error", args.step_number):
                changed = rule.fix(args.message_list.all)
                if not isinstance(cast(Any, changed), bool):
                    raise WrongType(changed, "allowed: True or False")
                if changed and key in args.state:
                    raise RuntimeError(
                        "it repaired the history again, but the provider still refuses it"
                    ) from args.error
            if not changed:
                continue
            args.state.add(key)
            logger.info("compatibility rule %s repaired the history of %s", rule.name, args.thread_id or "this call")
            repaired = True
        return {"retry": True} if repaired else None

    @contextmanager
    def _naming(self, rule: CompatRule, hook: str, step: int) -> Generator[None]:
        """Add rule, hook and step to errors of the block."""
        try:
            yield
        except WrongType as error:
            message = f"compatibility rule {rule.name!r} returned {error} ({hook}, step {step})"
            raise ProcessorResultError(message, processor_id=self.id, hook=hook, step=step) from error
        except Exception as error:
            message = f"compatibility rule {rule.name!r} failed in {hook} at step {step}: {described(error)}"
            raise ProcessorError(message, processor_id=self.id, hook=hook, step=step) from error
