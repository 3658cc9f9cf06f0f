"""Objects that the command line names: a model by its id, or an object of your program as MODULE:NAME."""

from __future__ import annotations

import importlib
import os
import sys
from functools import reduce
from pathlib import Path
from typing import Any

from diarist.exceptions import ConfigError, InputError
from diarist.memory.observational.roles.role_models import EXTRACTIVE
from diarist.models import resolve
from diarist.models.base import Model


def model_at(model: str, base_url: str | None, *, api_key_env: str | None) -> Model:
    """Return the model. Errors name options of the command line. Raises ConfigError, InputError."""
    api_key = None if api_key_env is None else os.environ.get(api_key_env)
    if api_key_env is not None and not api_key:
        raise InputError(f"--api-key-env: the environment variable {api_key_env} is not set")
    try:
        return resolve(model, base_url=base_url, api_key=api_key)
    except ConfigError as error:
        text = str(error).replace(
            "pass api_key= to diarist.models.resolve", "name the variable that holds it with --api-key-env"
        )
        raise ConfigError(text.replace("base_url=", "--base-url").replace("base_url", "--base-url")) from error


def observer_at(model: str, base_url: str | None, *, api_key_env: str | None, option: str) -> Model | str:
    """Return the model of Observer and Reflector, or ``"extractive"``. Raises ConfigError, InputError.

    ``option``: the option that names the model, for errors.
    """
    if model != EXTRACTIVE:
        return model_at(model, base_url, api_key_env=api_key_env)
    if base_url or api_key_env:
        raise ConfigError(
            f"--base-url and --api-key-env have no effect without a model; add {option}, for example openai/gpt-5-mini"
        )
    return EXTRACTIVE


def object_at(place: str, what: str) -> Any:
    """Import the object at ``module:name``; ``what`` it is, for errors. Raises InputError."""
    module_name, colon, name = place.partition(":")
    if not (module_name and colon and name):
        raise InputError(f"name the {what} as MODULE:NAME, such as app:{what}, not {place!r}")
    if module_name.endswith(".py") or not all(part.isidentifier() for part in module_name.split(".")):
        raise InputError(f"{module_name!r} is not the name of a module: write app:{what} for the {what} in app.py")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the user's own code runs
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            raise InputError(f"there is no module {error.name!r}, neither in {here} nor installed") from error
        raise InputError(
            f"the module {module_name!r} cannot be imported: {type(error).__name__}: {error}; "
            f"python -c 'import {module_name}' shows where"
        ) from error
    try:
        return reduce(getattr, name.split("."), module)
    except AttributeError as error:
        raise InputError(f"the module {module_name!r} has no {name!r}") from error
