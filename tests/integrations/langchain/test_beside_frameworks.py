"""The comparison with the framework's own compaction still runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "beside_frameworks.py"


def test_the_comparison_prints_a_row_for_each_way() -> None:
    command = [sys.executable, str(SCRIPT), "--only", "langchain", "--turns", "8", "--tokens", "1000"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert rows[1].endswith("| 5 of 5 | 0 | 8 of 8 |")  # the full history
    assert rows[-1].startswith("| observational memory |")
