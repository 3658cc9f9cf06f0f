"""Tools: typed functions that a model can call."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Generic,
    Protocol,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from typing_extensions import TypeVar

from diarist.checks import function, seconds, texts
from diarist.exceptions import ConfigError, ToolError
from diarist.json_schema import listed_problems, no_schema
from diarist.messages import Json, copy_json

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from diarist.run_context import RunContext, Writer

D = TypeVar("D", default=Any)
DepsT = TypeVar("DepsT", contravariant=True, default=Any)
"""The type of the ``deps`` that a tool or an agent needs: it also accepts a subclass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDefinition:
    """The description of a tool for a model. ``parameters`` is a JSON schema of type object."""

    name: str
    description: str
    parameters: dict[str, Json]


@dataclass(slots=True, kw_only=True)
class ToolContext(Generic[D]):
    """The context of a call, passed to a parameter annotated with ``ToolContext[Deps]``; ``Deps`` is the type of the
    application's ``deps=``."""

    run: RunContext[D]
    call_id: str
    tool_name: str

    @property
    def deps(self) -> D:
        """The application's ``deps=``."""
        return self.run.deps

    @property
    def writer(self) -> Writer:
        """Sends the tool's own chunks to the client."""
        return self.run.writer


class NamedFunction(Protocol):
    """A function that can be a tool; it needs a name, which a ``partial`` has not."""

    __name__: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


ContextFunction = (
    Callable[Concatenate[ToolContext[D], ...], Any]
    | Callable[Concatenate[Any, ToolContext[D], ...], Any]
    | Callable[Concatenate[Any, Any, ToolContext[D], ...], Any]
    | Callable[Concatenate[Any, Any, Any, ToolContext[D], ...], Any]
    | Callable[Concatenate[Any, Any, Any, Any, ToolContext[D], ...], Any]
)
"""A function with a context among its first five parameters. Type checkers read the type of ``deps`` from it."""


@dataclass(kw_only=True)
class Tool(Generic[DepsT]):
    """A tool, made by ``@tool`` from a function or written around a JSON schema.

    The type parameter is the type of the ``deps`` that its ``ToolContext`` must have; ``object`` without a context.

    Attributes:
        name: ``[a-zA-Z0-9_-]``, at most 64 characters.
        function: Sync (run in a worker thread) or async; the result of a generator is the list of what it yields. None
            makes it a client tool: the run ends with the call, and the client sends the result in a later run, as a
            message of role ``tool``.
        parameters: JSON schema of its arguments. Default: made from the function's signature.
        timeout: Seconds, more than 0; None for no limit. After it, an async tool is cancelled; a sync tool continues in
            its thread, and its result is ignored.
        needs_approval: True, or a function that takes a dictionary of the validated arguments, with defaults, and
            returns a bool. If true, the run ends with the call, and ``agent.resume`` approves or declines it. A call
            with invalid arguments is refused at once.

    Raises:
        ConfigError: A bad name or timeout, a signature that cannot be shown to a model, or ``timeout`` or
            ``needs_approval`` for a client tool.
    """

    name: str
    function: Callable[..., Any] | None = field(default=None, repr=False)
    description: str = ""
    parameters: dict[str, Json] | None = None
    timeout: float | None = None
    needs_approval: bool | Callable[[dict[str, Any]], bool] = False

    def __post_init__(self) -> None:
        texts("Tool", name=self.name)
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", self.name):
            raise ConfigError(f"tool name {self.name!r}: use 1 to 64 of a-z A-Z 0-9 _ -")
        if not isinstance(self.parameters, Mapping | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"tool {self.name!r}: parameters must be a JSON schema as a dictionary, not {self.parameters!r}; of a "
                "Pydantic model, write Model.model_json_schema()"
            )
        texts(f"tool {self.name!r}", description=self.description)
        function(f"tool {self.name!r}", "function", self.function)
        fields = self.parameters or {}
        described = all(isinstance(value, dict) and "type" in value for value in fields.values())
        if fields and described and fields.keys().isdisjoint(("properties", "additionalProperties")):
            raise ConfigError(
                f"tool {self.name!r}: parameters must be the JSON schema of an object; write its fields below "
                f'"properties": {{"properties": {{{next(iter(fields))!r}: ...}}}}'
            )
        if self.timeout is not None:
            seconds(f"tool {self.name!r}", "timeout", self.timeout)
        if not isinstance(self.needs_approval, bool) and not callable(self.needs_approval):
            raise ConfigError(
                f"tool {self.name!r}: needs_approval must be True, False or a function, not {self.needs_approval!r}"
            )
        if inspect.iscoroutinefunction(self.needs_approval):
            raise ConfigError(f"tool {self.name!r}: needs_approval takes a plain function, not an async one")
        if self.function is None and (self.timeout is not None or self.needs_approval is not False):
            option = "needs_approval" if self.timeout is None else "timeout"
            raise ConfigError(
                f"tool {self.name!r} has no function: its client runs it, and {option} has no effect there"
            )
        # With a JSON schema of its own, the function gets the arguments unchanged.
        self._signature = (
            _Signature(self.function, self.name) if self.function is not None and self.parameters is None else None
        )

    @cached_property
    def definition(self) -> ToolDefinition:
        parameters = self._signature.schema() if self._signature else dict(self.parameters or {"properties": {}})
        parameters.setdefault("type", "object")
        return ToolDefinition(name=self.name, description=self.description, parameters=parameters)

    def with_function(self, function: Callable[..., Any]) -> Tool[DepsT]:
        """Return the same tool around another function with the same parameters, reusing its definition."""
        _ = self.definition
        other = copy(self)
        other.function = function
        return other

    def must_be_approved(self, args: Mapping[str, Json]) -> bool:
        """Return True if a call with these arguments waits for approval. Raises ToolError for invalid arguments."""
        if self.needs_approval is False:
            return False
        values = self.validated(args)
        return self.needs_approval(values) if callable(self.needs_approval) else True

    def validated(self, args: Mapping[str, Json]) -> dict[str, Any]:
        """Return copies of the arguments as the function gets them, with defaults and without its context.

        Raises ToolError, with a text for the model.
        """
        values = {name: copy_json(value) for name, value in args.items()}
        return self._signature.validate(values) if self._signature is not None else values

    def _implementation(self) -> Callable[..., Any]:
        if self.function is None:
            raise ConfigError(f"tool {self.name!r} has no implementation here: its caller runs it")
        return self.function

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function) or inspect.isasyncgenfunction(self.function)

    @property
    def takes_context(self) -> bool:
        return self._signature is not None and bool(self._signature.context_names)

    def bind(self, args: Mapping[str, Json], context: ToolContext[Any]) -> Callable[[], Any | Awaitable[Any]]:
        """Return the function bound to its ``validated`` arguments and its context. Raises ToolError."""
        function, values = self._implementation(), self.validated(args)
        if self._signature is not None:
            values |= dict.fromkeys(self._signature.context_names, context)
        return lambda: function(**values)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the wrapped function."""
        return self._implementation()(*args, **kwargs)


class _Signature:
    """A pydantic model of a function's arguments: gives their schema and validates values."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._name = name
        self.context_names: list[str] = []
        self._fields: dict[str, tuple[Any, Any]] = {}
        hints = _hints(function, name)
        try:
            parameters = inspect.signature(function).parameters.values()
        except ValueError as error:  # of a builtin, such as int
            raise ConfigError(
                f"tool {name!r} has no readable signature; write a function with type hints that calls it"
            ) from error
        for parameter in parameters:
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise ConfigError(
                    f"tool {name!r}: parameter {parameter.name!r} is {parameter.kind.description}; "
                    "a tool takes named parameters only"
                )
            if parameter.name == "self" and "self" not in hints:
                raise ConfigError(
                    f"tool {name!r} is a method; leave it undecorated, and pass the method of an object: "
                    f"tools=[obj.{function.__name__}], or with options tool(...)(obj.{function.__name__})"
                )
            hint = hints.get(parameter.name, Any)
            if _is_context(hint):
                self.context_names.append(parameter.name)
            else:
                default = ... if parameter.default is parameter.empty else parameter.default
                self._fields[parameter.name] = (hint, default)

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        try:
            return self._make(self._fields)
        except Exception as error:  # pydantic raises various errors for types without a schema
            raise ConfigError(f"tool {self._name!r}: parameter {self._culprit()!r} {no_schema(error)}") from error

    def _make(self, fields: Mapping[str, tuple[Any, Any]]) -> TypeAdapter[Any]:
        from pydantic import ConfigDict, Field, TypeAdapter, create_model

        # Use neutral field names, since pydantic fields cannot be called `json` or `_x`.
        aliased: dict[str, Any] = {
            f"p{i}": (Annotated[hint, Field(alias=name)], default)
            for i, (name, (hint, default)) in enumerate(fields.items())
        }
        model = create_model(f"{self._name}_arguments", __config__=ConfigDict(extra="forbid"), **aliased)
        adapter = TypeAdapter[Any](model)
        adapter.json_schema()
        return adapter

    def _culprit(self) -> str:
        for name, kind in self._fields.items():
            try:
                self._make({name: kind})
            except Exception:  # any error here is caused by this parameter
                return name
        return ", ".join(self._fields)

    def schema(self) -> dict[str, Json]:
        schema = self._adapter.json_schema()
        schema.pop("title", None)
        for value in schema.get("properties", {}).values():
            value.pop("title", None)
        return schema

    def validate(self, args: dict[str, Json]) -> dict[str, Any]:
        from pydantic import ValidationError

        try:
            # lax: models write "3" for 3 and ISO dates for dates
            checked = self._adapter.validate_python(args)
        except ValidationError as error:
            problems = listed_problems(error, whole="arguments")
            raise ToolError(f"invalid arguments for {self._name}: {problems}") from None  # it quotes the value
        return {name: getattr(checked, f"p{i}") for i, name in enumerate(self._fields)}


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    described = function if inspect.isroutine(function) or inspect.isclass(function) else type(function).__call__
    if isinstance(function, partial):
        described = cast(Callable[..., Any], function.func)
    try:
        return get_type_hints(described, include_extras=True)
    except (NameError, TypeError) as error:
        missing = getattr(error, "name", None)
        written = cast(dict[str, Any], getattr(described, "__annotations__", {}))
        named = [repr(each) for each, hint in written.items() if missing and re.search(rf"\b{missing}\b", str(hint))]
        raise ConfigError(
            f"tool {name!r}: cannot resolve the annotation of parameter {', '.join(named) or '?'}: {error}"
        ) from error


def _is_context(hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType, Annotated):
        return any(_is_context(arg) for arg in get_args(hint))
    return hint is ToolContext or get_origin(hint) is ToolContext


class ToolMaker(Protocol):
    """The decorator that ``tool(...)`` with options returns."""

    @overload
    def __call__(self, function: ContextFunction[D], /) -> Tool[D]: ...
    @overload
    def __call__(self, function: Callable[..., Any], /) -> Tool[object]: ...  # pyright: ignore[reportOverlappingOverload]


@overload
def tool(function: ContextFunction[D], /) -> Tool[D]: ...
@overload
def tool(function: Callable[..., Any], /) -> Tool[object]: ...  # pyright: ignore[reportOverlappingOverload]
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    needs_approval: bool | Callable[[dict[str, Any]], bool] = False,
) -> ToolMaker: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    needs_approval: bool | Callable[[dict[str, Any]], bool] = False,
) -> Tool | Callable[..., Tool]:
    """Make a tool from a function; the model sees its name, docstring and annotated parameters.

    Args:
        function: Sync or async, with named parameters of types that have a JSON schema; one parameter may be a
            ``ToolContext`` and is not shown to the model.
        name: Default: the function's name.
        description: Default: its docstring.
        timeout: Seconds that it may run; after that, the model gets an error.
        needs_approval: A call ends the run, and ``agent.resume`` approves or declines the call. True, or a function
            of the validated arguments.

    Raises:
        ConfigError: The signature cannot be shown to a model; the message names the parameter.
    """

    def make(inner: Callable[..., Any]) -> Tool[Any]:
        if not callable(inner):
            raise ConfigError(f"tool() takes a function, not {inner!r}; write its options with names: @tool(name=...)")
        own_name = name or getattr(inner, "__name__", None)
        if own_name is None or own_name == "<lambda>":
            raise ConfigError(f"tool {inner!r} has no name; write tool(name=...)(...)")
        return Tool[Any](
            name=own_name,
            description=description or inspect.getdoc(inner) or "",
            function=inner,
            timeout=timeout,
            needs_approval=needs_approval,
        )

    return make(function) if function is not None else make


def as_tool(value: Tool | Callable[..., Any]) -> Tool:
    """Return a tool unchanged, or make one from a plain function."""
    if isinstance(value, Tool):
        return cast(Tool, value)
    if callable(value):
        return tool(value)
    raise ConfigError(f"not a tool: {value!r}; give a function with type hints or a Tool")
