"""Microsoft Presidio as a detector for ``PIIDetector``."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from anyio import to_thread

from diarist.exceptions import ConfigError
from diarist.processors.guardrails.pii import Detect, Detection


def presidio(*, entities: Sequence[str] | None = None, language: str = "en", analyzer: Any | None = None) -> Detect:
    """A detector that asks Presidio (the extra ``diarist[pii]``), in a worker thread.

    Types are Presidio's entities in our spelling: ``PHONE_NUMBER`` becomes ``phone-number``.

    Args:
        entities: Which entities to look for, by Presidio's names. Default: all that the analyzer knows.
        language: The language of the texts. Default ``"en"``.
        analyzer: An ``AnalyzerEngine`` of your own. Default: Presidio's default one, made at the first text; it
            needs the spaCy model ``en_core_web_lg``, which it downloads when it is missing.

    Raises:
        ConfigError: No analyzer is given and the package is not installed.

    Example::

        PIIDetector(detector=presidio(entities=["PERSON", "LOCATION"]))
    """
    if analyzer is None and find_spec("presidio_analyzer") is None:
        raise ConfigError("presidio() needs a package: pip install 'diarist[pii]', or pass analyzer=")
    engine = analyzer

    def analyze(text: str) -> list[Detection]:
        nonlocal engine
        if engine is None:
            engine = import_module("presidio_analyzer").AnalyzerEngine()
        wanted = None if entities is None else list(entities)
        found: list[Any] = engine.analyze(text=text, entities=wanted, language=language)
        return [
            Detection(str(item.entity_type).lower().replace("_", "-"), text[item.start : item.end], float(item.score))
            for item in found
        ]

    async def detect(text: str) -> list[Detection]:
        return await to_thread.run_sync(analyze, text)

    return detect
