"""Who observes and who reflects: from the configuration to the two roles."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from diarist.exceptions import ConfigError
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.roles.base import ObserverRole, ReflectorRole
from diarist.memory.observational.roles.calling import RoleModel
from diarist.memory.observational.roles.hooked_roles import hooked
from diarist.memory.observational.roles.model_choice import ByInputTokens, FixedModel, ModelChoice
from diarist.memory.observational.roles.observer import ModelObserver
from diarist.memory.observational.roles.reflector import ModelReflector
from diarist.memory.working.keeping import Keeper
from diarist.models.base import Model
from diarist.models.entry import ModelEntry, entries_of
from diarist.models.resolve import has_credentials, resolve
from diarist.tokens import TokenCounter

DEFAULT_MODEL = "google/gemini-2.5-flash"
"""Used where no model is configured and its key is present: cheap, quick, and takes a million tokens."""

EXTRACTIVE = "extractive"

logger = logging.getLogger("diarist")


class RoleModels:
    """The models of both roles, as a configuration names them: each is resolved once and closed here."""

    def __init__(
        self, config: ObservationalMemoryConfig, counter: TokenCounter, *, keeper: Keeper | None = None
    ) -> None:
        self._config = config
        self._keeper = keeper
        self._counter = counter
        self._resolved: dict[str, Model] = {}

    def roles(self, actor: Model | None) -> tuple[ObserverRole, ReflectorRole]:
        """Observer and Reflector for an agent with the model ``actor``.

        Where no model is named (or ``"default"``): ``DEFAULT_MODEL`` if its key is present, else ``actor``; a
        log line says which.

        Raises:
            ConfigError: A model cannot be used, or none is named and there is neither a key nor an agent.
        """
        return hooked(self._observer(actor), self._reflector(actor), self._config)

    def check(self) -> None:
        """Refuse a model that is named and cannot be used now, not when it is needed first. Raises ConfigError."""
        for choice, role in ((self._config.observer_model, "Observer"), (self._config.reflector_model, "Reflector")):
            if choice is None or isinstance(choice, bool) or choice == "default":
                continue
            if "default" not in (cast("Sequence[object]", choice) if isinstance(choice, list | tuple) else ()):
                self._choose(cast("ModelChoice", choice), None, role)

    async def close(self) -> None:
        """Close the models that were resolved here; a model object is its maker's to close."""
        for model in self._resolved.values():
            await model.close()

    def _observer(self, actor: Model | None) -> ObserverRole:
        config, options = self._config, self._config.observation
        model = self._choose(config.observer_model, actor, "Observer")
        if model is None:
            from diarist.memory.observational.roles.extractive import (
                ExtractiveObserver,  # few need it, and it has many parts
            )

            return ExtractiveObserver(
                timezone=config.timezone,
                name_threads=config.scope == "resource",
                obscure_threads=config.obscures_threads,
            )
        return ModelObserver(
            model,
            settings=options.model_settings,
            counter=self._counter,
            timezone=config.timezone,
            instruction=options.instruction,
            language=config.language,
            previous_tokens=options.previous_observer_tokens,
            tool_result_tokens=options.tool_result_tokens,
            batch_tokens=options.batch_tokens,
            temporal_markers=config.temporal_markers,
            attachments=options.observe_attachments is not False,
            thread_title=options.thread_title,
            keeper=self._keeper,
            name_threads=config.scope == "resource",
            obscure_threads=config.obscures_threads,
        )

    def _reflector(self, actor: Model | None) -> ReflectorRole:
        config, options = self._config, self._config.reflection
        model = self._choose(config.reflector_model, actor, "Reflector")
        if model is None:
            from diarist.memory.observational.roles.extractive import ExtractiveReflector

            return ExtractiveReflector(counter=self._counter)
        return ModelReflector(
            model,
            settings=options.model_settings,
            counter=self._counter,
            instruction=options.instruction,
            language=config.language,
        )

    def _choose(self, choice: ModelChoice, actor: Model | None, role: str) -> RoleModel | None:
        """The role's model; None for the one that works without a model."""
        if choice == EXTRACTIVE:
            return None
        if isinstance(choice, ByInputTokens):
            for fixed in choice.up_to.values():  # a model that cannot be used is refused now, not when it is needed
                self._entries(fixed, actor, role)
        if callable(choice):
            return lambda tokens: self._entries(choice(tokens), actor, role)
        return self._entries("default" if choice in (None, True) else choice, actor, role)

    def _entries(self, choice: FixedModel, actor: Model | None, role: str) -> list[ModelEntry]:
        items = list(choice) if isinstance(choice, list | tuple) else [choice]
        entries = [item if isinstance(item, ModelEntry) else ModelEntry(model=item) for item in items]
        return entries_of([replace(entry, model=self._resolve(entry.model, actor, role)) for entry in entries])

    def _resolve(self, choice: str | Model, actor: Model | None, role: str) -> Model:
        if choice == "default":
            return self._default(actor, role)
        if choice == EXTRACTIVE:
            raise ConfigError(f"the {role}: 'extractive' stands alone, not in a list or a choice of models")
        if not isinstance(choice, str):
            return resolve(choice)
        if choice not in self._resolved:
            self._resolved[choice] = resolve(choice)
        return self._resolved[choice]

    def _default(self, actor: Model | None, role: str) -> Model:
        if has_credentials(DEFAULT_MODEL):
            logger.info("%s: no model is configured, %s is used", role, DEFAULT_MODEL)
            return self._resolve(DEFAULT_MODEL, actor, role)
        if actor is None:
            raise ConfigError(
                f"the {role} has no model: set model= in ObservationalMemoryConfig ('extractive' needs no key), "
                f"or a key for {DEFAULT_MODEL}"
            )
        logger.info("%s: no model is configured, the agent's own %s is used", role, actor.id)
        return actor
