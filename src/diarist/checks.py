"""Checks of options and arguments. Each error names the option, the allowed values, and the given value.

Options of objects are checked when the object is made, and raise ConfigError. Arguments of calls raise InputError.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from math import isfinite
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from diarist.exceptions import ConfigError, InputError
from diarist.messages import MAX_NESTING, Json, Message

OWN_RESOURCE = "@thread:"
"""Prefix of the resource id of a thread that was begun without a resource; not allowed as ``resource=``."""
LARGEST = 2**63 - 1
"""The largest integer that databases can store; used as a limit, it means no limit."""

# --- options of objects: ConfigError -------------------------------------------------------------------------


def whole(owner: str, option: str, value: Any, *, least: int, most: int | None = None) -> None:
    """Raise ConfigError for anything but a whole number in these bounds."""
    if not _is_whole(value) or value < least or (most is not None and value > most):
        upto = "on" if most is None else f"to {most:,}"
        raise _refused(owner, option, f"a whole number from {least} {upto}", value)


def number(owner: str, option: str, value: Any, *, least: float, most: float) -> None:
    """Raise ConfigError for anything but a number in these bounds."""
    if not _is_number(value) or not least <= value <= most:
        raise _refused(owner, option, f"a number from {least} to {most}", value)


def positive(owner: str, option: str, value: Any) -> None:
    """Raise ConfigError for anything but a number above 0."""
    if not _is_number(value):
        raise _refused(owner, option, "a number", value)
    if not value > 0:
        raise _refused(owner, option, "more than 0", value)


def not_negative(owner: str, option: str, value: Any) -> None:
    """Raise ConfigError for anything but a number from 0 on."""
    if not _is_number(value):
        raise _refused(owner, option, "a number", value)
    if not value >= 0:
        raise ConfigError(f"{_label(owner, option)} must not be negative, not {value!r}")


def share(owner: str, option: str, value: Any) -> None:
    """Raise ConfigError for anything but a number above 0 and at most 1."""
    if not _is_number(value) or not 0 < value <= 1:
        raise _refused(owner, option, "a number above 0 and at most 1", value)


def seconds(owner: str, option: str, value: Any, *, zero: bool = False) -> None:
    """Raise ConfigError for anything but a finite number of seconds above 0, or with ``zero`` from 0 on."""
    if not _is_number(value) or not isfinite(value) or value < 0 or (value == 0 and not zero):
        raise _refused(owner, option, f"a number of seconds {'from 0 on' if zero else 'above 0'}", value)


def one_of(owner: str, option: str, value: Any, allowed: Sequence[str]) -> None:
    """Raise ConfigError for a value that is not among ``allowed``."""
    if value not in allowed:
        raise _refused(owner, option, f"one of {', '.join(map(repr, allowed))}", value)


def flags(owner: str, **options: Any) -> None:
    """Raise ConfigError for an option that is neither True nor False."""
    for option, value in options.items():
        if not isinstance(value, bool):
            raise _refused(owner, option, "True or False", value)


def texts(owner: str, **options: Any) -> None:
    """Raise ConfigError for an option that is no text."""
    for option, value in options.items():
        if not isinstance(value, str):
            raise _refused(owner, option, "a text", value)


def text_or_texts(owner: str, option: str, value: Any) -> tuple[str, ...]:
    """Return a text as a tuple, or the texts of an iterable. Raises ConfigError for anything else."""
    return (value,) if isinstance(value, str) else text_list(owner, option, value, wanted="a text or a list of texts")


def text_list(owner: str, option: str, value: Any, *, wanted: str = "a list of texts") -> tuple[str, ...]:
    """Return the texts of an iterable. Raises ConfigError for a single text, and for anything else."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        listed = tuple(cast(Iterable[Any], value))
        if all(isinstance(item, str) for item in listed):
            return listed
    raise _refused(owner, option, wanted, value)


def function(owner: str, option: str, value: Any) -> None:
    """Raise ConfigError for a value that is neither None nor callable."""
    if value is not None and not callable(value):
        raise _refused(owner, option, "a function", value)


def function_list(owner: str, option: str, value: Any) -> tuple[Any, ...]:
    """Return the functions of an iterable. Raises ConfigError for anything else."""
    if isinstance(value, Iterable):
        listed = tuple(cast(Iterable[Any], value))
        if all(callable(item) for item in listed):
            return listed
    raise _refused(owner, option, "a list of functions", value)


def message_limit(owner: str, option: str, value: Any) -> None:
    """Raise ConfigError for anything but a whole number from 0 on, or False."""
    if value is not False and (not _is_whole(value) or value < 0):
        raise _refused(owner, option, "a whole number from 0 on, or False", value)


def instance(owner: str, option: str, value: Any, kind: type[object]) -> None:
    """Raise ConfigError for a value of another class."""
    if not isinstance(value, kind):
        raise _refused(owner, option, f"{kind.__name__}(...)", value)


def check_by_type(thing: object) -> None:
    """Raise ConfigError for an option of a dataclass that is annotated as bool, str or Literal, with another value."""
    owner = type(thing).__name__
    for option, kind in _types_of(type(thing)).items():
        value = getattr(thing, option)
        if kind is bool:
            flags(owner, **{option: value})
        elif kind is str:
            texts(owner, **{option: value})
        elif get_origin(kind) is Literal:
            one_of(owner, option, value, get_args(kind))


@cache
def _types_of(kind: type[Any]) -> dict[str, Any]:
    """Return the types of the options. The own annotations of a user's subclass may name unknown types."""
    return get_type_hints(next(each for each in kind.__mro__ if each.__module__.startswith("diarist.")))


def has_methods(owner: str, option: str, value: Any, *names: str) -> None:
    """Raise ConfigError for an object without one of these methods."""
    if missing := [name for name in names if not callable(getattr(value, name, None))]:
        raise _refused(owner, option, f"an object with the method {missing[0]!r}", value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _label(owner: str, option: str) -> str:
    return f"{owner}: {option}" if owner else option


def _refused(owner: str, option: str, wanted: str, value: Any) -> ConfigError:
    return ConfigError(f"{_label(owner, option)} must be {wanted}, not {value!r}")


# --- arguments of calls: InputError --------------------------------------------------------------------------


def checked(value: str, what: str) -> str:
    """Return ``value`` if every database can store it as a key or in a text column. Raises InputError."""
    if not isinstance(cast(object, value), str):
        raise InputError(f"{what} must be a text, not {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{what} is not valid Unicode: {value!r}") from error
    if "\0" in value:
        raise InputError(f"{what} contains a NUL character: {value!r}")
    return value


def refuse_empty(**ids: str | None) -> None:
    """Raise InputError for an empty id."""
    for name, value in ids.items():
        if value == "":
            raise InputError(f"{name} is empty: pass the id of a {name}, or leave {name}= out")


def refuse_own_resource(resource: str | None) -> None:
    """Raise InputError for an id that only threads without a resource have."""
    if resource is not None and resource.startswith(OWN_RESOURCE):
        raise InputError(
            f"resource={resource!r}: ids that begin with '@thread:' belong to threads without a resource; pass the "
            "thread, and leave resource= out"
        )


def check_names(**ids: str | None) -> None:
    """Raise InputError for an argument that is not the id of a thread or resource; None is allowed."""
    for name, value in ids.items():
        if value is not None and not isinstance(cast(object, value), str):
            raise InputError(f"{name} must be the id of a {name.replace('_', ' ')}, a text, not {value!r}")
    refuse_empty(**ids)
    refuse_own_resource(ids.get("resource"))


def checked_metadata(metadata: Mapping[str, Json] | None) -> dict[str, Json]:
    """Return a copy of metadata; for None, an empty one. Raises InputError, which names a value that is not JSON."""
    value = cast(object, {} if metadata is None else metadata)
    if not isinstance(value, Mapping):
        raise InputError(f"metadata must be a dictionary, such as {{'kind': 'travel'}}, not {value!r}")
    found = cast(Mapping[object, Json], value)
    for key, item in found.items():
        if not isinstance(key, str):
            raise InputError(f"a key of metadata must be a text, not {key!r}")
        if wrong := _not_json(item):
            raise InputError(
                f"metadata[{key!r}] is not JSON ({wrong}); use texts, finite numbers, booleans, None, lists and"
                " dictionaries"
            )
    return dict(cast(Mapping[str, Json], found))


def check_metadata_of(messages: Sequence[Message]) -> None:
    """Raise InputError if metadata of a message is not JSON; the error names the message."""
    for place, message in enumerate(messages):
        try:
            checked_metadata(message.metadata)
        except InputError as error:
            raise InputError(f"message {place}: {error}") from error


def _not_json(value: Json, room: int = MAX_NESTING) -> str | None:
    """Return why a value cannot be stored as JSON, or None if it can. (A tuple is read back as a list.)"""
    if value is None or isinstance(value, str | int):
        return None
    if isinstance(value, float):
        return None if isfinite(value) else f"{value} is no finite number"
    if not isinstance(value, dict | list | tuple):
        return f"{type(value).__name__} is no type of JSON"
    if room == 0:
        return f"it is nested more than {MAX_NESTING} deep"
    found = cast("dict[object, Json] | Sequence[Json]", value)
    if isinstance(found, dict):
        if odd := [key for key in found if not isinstance(key, str)]:
            return f"the key {odd[0]!r} is no text"
        found = list(found.values())
    return next((wrong for item in found if (wrong := _not_json(item, room - 1))), None)


def check_limit(limit: int | None) -> int:
    """Return ``limit``, or LARGEST for None. Raises InputError for anything but a whole number from 0 on."""
    return LARGEST if limit is None else check_whole("limit", limit, least=0)


def check_place(**places: int | None) -> None:
    """Raise InputError for an argument that is neither None nor a possible ``seq``."""
    for name, value in places.items():
        if value is not None:
            check_whole(name, value, least=-LARGEST)


def check_whole(name: str, value: int, *, least: int) -> int:
    """Return ``value``. Raises InputError unless it is a whole number from ``least`` to the maximum of databases."""
    if not _is_whole(value) or value < least:
        raise InputError(f"{name} must be a whole number from {least} on, not {value!r}")
    if value >= LARGEST:
        raise InputError(f"{name} must be below {LARGEST:,}, not {value}")
    return int(value)


def check_moment(name: str, value: object) -> None:
    """Raise InputError for anything but None and a datetime with a time zone."""
    if value is not None and (not isinstance(value, datetime) or value.tzinfo is None):
        raise InputError(f"{name} needs a datetime with a time zone, not {value!r}")


def check_ids(name: str, ids: Collection[str]) -> None:
    """Raise InputError for anything but a collection of texts; a single text is refused."""
    given = cast(Any, ids)
    if not isinstance(given, Collection) or isinstance(given, str | bytes | Mapping):
        raise InputError(f"{name} must be a list of ids, such as ['msg_1'], not {given!r}")
    for one in cast(Collection[Any], given):
        if not isinstance(one, str):
            raise InputError(f"an id in {name} must be a text, not {one!r}")
