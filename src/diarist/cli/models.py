"""The model that options of the command line name."""

from __future__ import annotations

import os

from diarist.exceptions import ConfigError, InputError
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
