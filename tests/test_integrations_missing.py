"""Without its framework, an adapter says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

# An import finds None in ``sys.modules`` as a module that is not installed.
CODE = """
import sys
sys.modules[{package!r}] = None
from diarist.exceptions import ConfigError
try:
    import diarist.integrations.{module}
except ConfigError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [("langchain", "langchain", "langchain"), ("openai_agents", "agents", "openai-agents")],
)
def test_without_its_framework_an_adapter_names_the_extra(module: str, package: str, extra: str) -> None:
    code = CODE.format(module=module, package=package)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"diarist.integrations.{module} needs a package: pip install 'diarist[{extra}]'\n"
