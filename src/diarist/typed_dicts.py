"""``typing.TypedDict`` for pydantic, which before Python 3.12 supports only that of ``typing_extensions``."""

from __future__ import annotations

import sys
from types import GenericAlias, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)


def portable(hint: Any) -> Any:
    """Return the type with every ``typing.TypedDict`` replaced by an equal one that pydantic supports.

    From Python 3.12 on, return the type itself.
    """
    return hint if sys.version_info >= (3, 12) else _replaced(hint, ())


def _replaced(hint: Any, inside: tuple[Any, ...]) -> Any:
    if is_typeddict(hint) and type(hint).__module__ == "typing" and hint not in inside:
        return _rebuilt(hint, (*inside, hint))
    origin, args = get_origin(hint), get_args(hint)
    if not args or origin is Literal:
        return hint
    if origin is Annotated:
        return Annotated[_replaced(args[0], inside), *args[1:]]
    new = tuple(_replaced(arg, inside) for arg in args)
    if all(one is other for one, other in zip(new, args, strict=True)):
        return hint
    if origin in (Union, UnionType):
        return Union[new]  # noqa: UP007 - a tuple of types
    return GenericAlias(origin, new) if isinstance(hint, GenericAlias) else hint.copy_with(new)


def _rebuilt(typed_dict: Any, inside: tuple[Any, ...]) -> Any:
    import typing_extensions

    fields: dict[str, Any] = {}
    for name, hint in get_type_hints(typed_dict, include_extras=True).items():
        # With postponed annotations, __required_keys__ ignores Required and NotRequired in the hints.
        marker: Any = Required if name in typed_dict.__required_keys__ else NotRequired
        if get_origin(hint) in (Required, NotRequired):
            marker, hint = get_origin(hint), get_args(hint)[0]
        fields[name] = marker[_replaced(hint, inside)]
    rebuilt: Any = typing_extensions.TypedDict(typed_dict.__name__, fields)  # pyright: ignore[reportGeneralTypeIssues, reportArgumentType]
    rebuilt.__doc__ = typed_dict.__doc__
    return rebuilt
