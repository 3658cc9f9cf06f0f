"""A conversation that began with one provider goes on with another."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, cast

from diarist.exceptions import ConfigError, ProcessorError, ProcessorResultError
from diarist.messages import Prompt
from diarist.processors.base import APIErrorResult, ProcessAPIErrorArgs, ProcessLLMRequestArgs, Processor
from diarist.processors.errors.rules import BUILT_IN_RULES
from diarist.processors.errors.rules.base import CompatRule

logger = logging.getLogger("diarist")


class ProviderHistoryCompat(Processor[Any]):
    """Makes a conversation's history fit the provider that is called now.

    Rules with ``apply_to_prompt`` run before each call, on the prompt of that call alone. Rules with ``fix`` run
    when the provider refuses the history; they repair the messages themselves, so that a thread is repaired once
    and for all, and the call is tried once more. Listing it once is enough.

    Args:
        additional_rules: Rules of your own; they run after the built-in ones.

    Raises:
        ConfigError: Two rules have one name, or an entry is no ``CompatRule``.

    The built-in rules:

    - ``anthropic-tool-id-format``: after a refusal, ids of tool calls get characters that Anthropic takes.
    - ``cerebras-strip-reasoning-content``: Cerebras takes no reasoning back.
    - ``anthropic-strip-foreign-reasoning-content``: reasoning of others does not go to Anthropic.
    - ``strip-foreign-provider-tools``: nor do calls of tools that another provider ran go to anybody.
    - ``anthropic-strip-empty-signed-reasoning-content``: earlier turns' thinking with a signature and no text.
    - ``strip-foreign-signed-reasoning``: reasoning that another provider signed.
    - ``openai-drop-orphaned-item-ids``: ids of OpenAI's items whose reasoning is no longer there.

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
                raise ConfigError(f"additional_rules: {rule!r} is no CompatRule")
            if rule.name in names:
                raise ConfigError(f"additional_rules: two rules have the name {rule.name!r}")
            names.add(rule.name)

    def create_state(self) -> set[tuple[int, str]]:
        """Step and rule of each repair."""
        return set()

    def process_llm_request(self, args: ProcessLLMRequestArgs[Any]) -> Prompt | None:
        """The prompt as the rules leave it.

        Raises:
            ProcessorError: A rule raised; the error names it.
            ProcessorResultError: A rule returned something else than a ``Prompt`` or None.
        """
        prompt = args.prompt
        for rule in self.rules:
            if rule.apply_to_prompt is None:
                continue
            try:
                changed = rule.apply_to_prompt(prompt, args.model)
            except Exception as error:
                raise self._failed(rule, "process_llm_request", args.step_number, error) from error
            if changed is None:
                continue
            if not isinstance(cast(Any, changed), Prompt):
                raise self._bad(rule, "process_llm_request", args.step_number, changed, "a Prompt or None")
            logger.debug("compatibility rule %s changed the prompt for %s", rule.name, args.model.id)
            prompt = changed
        return None if prompt is args.prompt else prompt

    def process_api_error(self, args: ProcessAPIErrorArgs[Any]) -> APIErrorResult | None:
        """Repair the messages that the provider refused, and ask for a retry; once per rule and step.

        Raises:
            ProcessorError: A rule raised, or says that it repaired something each time and the provider still
                refuses; the error names it, and the provider's error is its cause.
            ProcessorResultError: ``fix`` returned something else than a bool.
        """
        repaired = [
            self._repair(rule, args) for rule in self.rules if rule.fix is not None and rule.matches(args.error)
        ]
        return {"retry": True} if any(repaired) else None

    def _repair(self, rule: CompatRule, args: ProcessAPIErrorArgs[Any]) -> bool:
        assert rule.fix is not None
        try:
            changed = rule.fix(args.message_list.all)
        except Exception as error:
            raise self._failed(rule, "process_api_error", args.step_number, error) from error
        if not isinstance(cast(Any, changed), bool):
            raise self._bad(rule, "process_api_error", args.step_number, changed, "True or False")
        if not changed:
            return False
        key = (args.step_number, rule.name)
        if key in args.state:
            raise ProcessorError(
                f"compatibility rule {rule.name!r} goes round in circles: it says it repaired the history again, and "
                f"the provider still refuses it: {args.error}",
                processor_id=self.id,
                hook="process_api_error",
                step=args.step_number,
            ) from args.error
        args.state.add(key)
        logger.info("compatibility rule %s repaired the history of %s", rule.name, args.thread_id or "this call")
        return True

    def _failed(self, rule: CompatRule, hook: str, step: int, error: Exception) -> ProcessorError:
        return ProcessorError(
            f"compatibility rule {rule.name!r} failed in {hook} at step {step}: {type(error).__name__}: {error}",
            processor_id=self.id,
            hook=hook,
            step=step,
        )

    def _bad(self, rule: CompatRule, hook: str, step: int, value: object, allowed: str) -> ProcessorResultError:
        return ProcessorResultError(
            f"compatibility rule {rule.name!r} returned {type(value).__name__} in {hook} at step {step}; "
            f"allowed: {allowed}",
            processor_id=self.id,
            hook=hook,
            step=step,
        )
