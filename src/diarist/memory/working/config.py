"""Configuration of working memory. Invalid combinations raise ConfigError at construction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from diarist.checks import flags, one_of
from diarist.exceptions import ConfigError
from diarist.memory.working.prompts import load_prompt
from diarist.storage.records import Scope

DEFAULT_TEMPLATE = load_prompt("template")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingMemoryConfig:
    """Content, scope and writer of working memory.

    Attributes:
        enabled: False disables working memory.
        scope: ``resource``: one for all threads of a resource; ``thread``: one per thread.
        template: Markdown with the fields to fill in; an update replaces the whole text. Default: a built-in template,
            unless a schema is set.
        schema: A Pydantic model, dataclass or TypedDict, or a JSON schema of type object, instead of a template. The
            working memory is then a JSON object, and updates are merged into it. Fields may be missing if unknown, even
            required ones.
        read_only: True: the model sees it and cannot change it. A function of the call's ``request_context`` decides
            per call.
        kept_by: ``actor``: the agent's own model updates it with the tool ``update_working_memory``; ``observer``: the
            Observer of observational memory updates it together with its notes.

    Raises:
        ConfigError: Names the invalid option.
    """

    enabled: bool = True
    scope: Scope = "resource"
    template: str | None = None
    schema: type[Any] | Mapping[str, Any] | None = None
    read_only: bool | Callable[[dict[str, Any]], bool] = False
    kept_by: Literal["actor", "observer"] = "actor"

    def __post_init__(self) -> None:
        flags("", **{"working_memory.enabled": self.enabled})
        one_of("", "working_memory.scope", self.scope, get_args(Scope))
        one_of("", "working_memory.kept_by", self.kept_by, ("actor", "observer"))
        if self.template is not None and self.schema is not None:
            raise ConfigError("set either working_memory.template or working_memory.schema, not both")
        if not isinstance(cast(Any, self.template), str | None):
            raise ConfigError(f"working_memory.template must be a Markdown text, not {self.template!r}")
        if self.template is not None and not self.template.strip():
            raise ConfigError("working_memory.template is empty; leave it out for the default, or set a schema")
        if not isinstance(cast(Any, self.read_only), bool) and not callable(self.read_only):
            raise ConfigError(f"working_memory.read_only must be a bool or a function, not {self.read_only!r}")
        if self.read_only is True and self.kept_by == "observer":
            raise ConfigError("working_memory.read_only contradicts kept_by='observer', which would never write it")

    def is_read_only(self, request_context: dict[str, Any]) -> bool:
        """Return True if a call with this ``request_context`` must not change the working memory."""
        return self.read_only if isinstance(self.read_only, bool) else bool(self.read_only(request_context))
