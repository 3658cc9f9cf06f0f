"""Build Observer and Reflector from the configuration."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from diarist.exceptions import ConfigError
from diarist.memory.observational.config import FixedModel, ModelChoice, ObservationalMemoryConfig
from diarist.memory.observational.roles.base import EXTRACTIVE, ObserverRole, ReflectorRole
from diarist.memory.observational.roles.calling import RoleModel
from diarist.memory.observational.roles.hooks import HookedObserver, HookedReflector, MemoryHooks
from diarist.memory.observational.roles.observer import ModelObserver
from diarist.memory.observational.roles.reflector import ModelReflector
from diarist.memory.working.observer_updates import ObserverUpdates
from diarist.models.base import Model
from diarist.models.fallbacks import ModelEntry, entries_of
from diarist.models.providers import key_name
from diarist.models.resolve import resolve
from diarist.tokens import TokenCounter

DEFAULT_MODEL = "google/gemini-2.5-flash"
"""Used if no model is configured and the key for this one is set: cheap, fast, with a window of a million tokens."""

_CHOOSE = "observational_memory=ObservationalMemoryConfig(model=...)"

logger = logging.getLogger("diarist")


class RoleModels:
    """Resolves the models that a configuration names, each once, and closes them."""

    def __init__(
        self, config: ObservationalMemoryConfig, counter: TokenCounter, working_updates: ObserverUpdates | None = None
    ) -> None:
        self._config, self._counter, self._working_updates = config, counter, working_updates
        self._resolved: dict[str, Model] = {}

    def roles(self, actor: Model | None) -> tuple[ObserverRole, ReflectorRole]:
        """Return Observer and Reflector for an agent with the model ``actor``.

        Without a configured model (or with ``"default"``) they use ``DEFAULT_MODEL`` if its key is set and its package
        is installed, else ``actor``; a log line says which, and why.

        Raises:
            ConfigError: A model cannot be used; or none is configured, ``DEFAULT_MODEL`` cannot be used, and ``actor``
                is None.
        """
        config = self._config
        observer_model = self._choose(config.observer_model, actor, "Observer")
        reflector_model = self._choose(config.reflector_model, actor, "Reflector")
        observer: ObserverRole
        reflector: ReflectorRole
        if observer_model is None:
            from diarist.memory.observational.roles.extractive.observer import ExtractiveObserver  # loaded only if used

            observer = ExtractiveObserver(config)
        else:
            observer = ModelObserver(
                observer_model, config, counter=self._counter, working_updates=self._working_updates
            )
        if reflector_model is None:
            from diarist.memory.observational.roles.extractive.reflector import ExtractiveReflector

            reflector = ExtractiveReflector(counter=self._counter)
        else:
            reflector = ModelReflector(reflector_model, config, counter=self._counter)
        if config.hooks != MemoryHooks():
            observer = HookedObserver(observer, config.hooks, timezone=config.timezone)
            reflector = HookedReflector(reflector, config.hooks)
        return observer, reflector

    def check(self) -> None:
        """Raise ConfigError if a configured model cannot be used."""
        for choice, role in ((self._config.observer_model, "Observer"), (self._config.reflector_model, "Reflector")):
            if choice is None or isinstance(choice, bool) or choice == "default":
                continue
            if "default" not in (cast("Sequence[object]", choice) if isinstance(choice, list | tuple) else ()):
                self._choose(cast("ModelChoice", choice), None, role)

    async def close(self) -> None:
        """Close the models that were created here from ids. The creator of a model object closes it."""
        for model in self._resolved.values():
            await model.close()

    def _choose(self, choice: ModelChoice, actor: Model | None, role: str) -> RoleModel | None:
        """Return the role's model; None for ``"extractive"``."""
        if choice == EXTRACTIVE:
            return None
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
            raise ConfigError(f"the {role}: 'extractive' cannot be part of a list or a choice of models")
        if not isinstance(choice, str):
            return resolve(choice)
        if "/" not in choice:
            raise ConfigError(
                f"the {role}: model {choice!r}: write provider/model, such as 'openai/gpt-5-mini', or 'extractive', "
                "which needs no key"
            )
        if choice not in self._resolved:
            self._resolved[choice] = resolve(choice)
        return self._resolved[choice]

    def _default(self, actor: Model | None, role: str) -> Model:
        key = key_name(DEFAULT_MODEL.partition("/")[0])
        if key is None:
            if actor is None:
                raise ConfigError(
                    f"the {role} has no model: pass {_CHOOSE}, with an id such as 'openai/gpt-5-mini', or with "
                    f"'extractive', which needs no key; or set GOOGLE_API_KEY for the default, {DEFAULT_MODEL}"
                )
            logger.info("%s: no model is configured, the agent's own %s is used", role, actor.id)
            return actor
        because = f"{DEFAULT_MODEL} is the default since {key} is set"
        try:
            model = self._resolve(DEFAULT_MODEL, actor, role)
        except ConfigError as error:
            because = f"{because}, but {error}; to choose another model, pass {_CHOOSE}"
            if actor is None:
                raise ConfigError(f"the {role} has no model: {because}") from error
            logger.warning("%s: the agent's own %s is used: %s", role, actor.id, because)
            return actor
        logger.info("%s: no model is configured, %s; to choose another model, pass %s", role, because, _CHOOSE)
        return model
