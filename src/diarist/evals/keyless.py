"""``diarist eval retention``: measure an Observer on a file of conversations, without a model as judge."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from diarist.evals.anchors import KINDS, AnchorKind
from diarist.evals.evidence import read_evidence
from diarist.evals.retention import Retention, measure
from diarist.evals.updates import Updates, measure_updates
from diarist.exceptions import InputError, RoleError
from diarist.memory.observational.config import ObservationalMemoryConfig, ObservationConfig, ReflectionConfig
from diarist.memory.observational.roles.role_models import EXTRACTIVE, RoleModels
from diarist.models.base import Model
from diarist.tokens import default_counter

_SPEAKERS = {"user": "users", "assistant": "the assistant", "tool": "tools"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The measured figures.

    Attributes:
        updates: The correction cases.
        observer: The Observer's model.
    """

    observer: str
    retention: Retention
    updates: Updates

    def text(self) -> str:
        """Return tables for a terminal."""
        found = self.retention
        kinds = [None, *found.asked] if found.asked else []
        asked_dates = found.asked_dates > 0
        heads = ["tokens", "ratio"]
        heads += [f"{kind or 'all'} ({found.asked[kind] if kind else found.asked.total():,})" for kind in kinds]
        heads += [f"dates with year ({found.asked_dates:,})"] * asked_dates
        rows: list[list[str]] = []
        for name, kept in found.kept.items():
            shares = [f"{100 * found.share(name, kind):.1f}" for kind in kinds]
            dated = [f"{100 * kept.dates / found.asked_dates:.1f}"] if asked_dates else []
            ratio = f"{found.tokens / kept.tokens:.1f}" if kept.tokens else "-"
            rows.append([self._name(name), f"{kept.tokens:,}", ratio, *shares, *dated])
        title = "Questions with all their evidence, %" if kinds else "Sizes"
        read = f"Read: {found.conversations:,} conversations, {found.messages:,} messages, {found.tokens:,} tokens."
        read += " In brackets: the number of questions or of details."
        parts = [read, _table(title, heads, rows)]
        if found.failed:
            parts.insert(0, f"Failed: {len(found.failed)} batches have no notes; the first error: {found.failed[0]}")
        for who, label in _SPEAKERS.items():
            present: list[AnchorKind] = [kind for kind in KINDS if found.anchors[who, kind]]
            if present:
                heads = [f"{kind} ({found.anchors[who, kind]:,})" for kind in present]
                rows = []
                for name, kept in found.kept.items():
                    shares = [f"{100 * kept.anchors[who, kind] / found.anchors[who, kind]:.0f}" for kind in present]
                    rows.append([self._name(name), *shares])
                parts.append(_table(f"Details of {label} that are kept, %", heads, rows))
        parts.append("\n".join(self._sentences()))
        return "\n\n".join(parts)

    def json(self) -> str:
        """Return all figures as JSON, with each line that has an anchor or a speaker of its own."""
        found = self.retention
        values = {
            "observer": self.observer,
            "conversations": found.conversations,
            "messages": found.messages,
            "tokens": found.tokens,
            "questions": dict(found.asked),
            "dates": found.asked_dates,
            "kept": {
                name: {
                    "tokens": kept.tokens,
                    "questions": dict(kept.questions),
                    "dates": kept.dates,
                    "anchors": {f"{who} {kind}": number for (who, kind), number in sorted(kept.anchors.items())},
                }
                for name, kept in found.kept.items()
            },
            "anchors": {f"{who} {kind}": number for (who, kind), number in sorted(found.anchors.items())},
            "lines": found.lines,
            "invented": [{"line": line, "anchors": anchors} for line, anchors in found.invented],
            "credited": found.credited,
            "miscredited": found.miscredited,
            "failed": found.failed,
            "calls": found.calls,
            "input_tokens": found.usage.input_tokens,
            "output_tokens": found.usage.output_tokens,
            "cached_tokens": found.usage.cached_tokens,
            "seconds": round(found.seconds, 3),
            "updates": {"cases": self.updates.cases, "stale": self.updates.stale},
        }
        return json.dumps(values, ensure_ascii=False, indent=2)

    def _name(self, name: str) -> str:
        return f"{self.observer} notes" if name == "notes" else name

    def _sentences(self) -> list[str]:
        found = self.retention
        lines = [
            f"Invention: {100 * len(found.invented) / max(1, found.lines):.1f} of 100 lines have a number, date, name "
            f"or other detail that no message has ({len(found.invented):,} of {found.lines:,})."
        ]
        if found.credited:
            right = found.credited - len(found.miscredited)
            lines.append(
                f"Attribution: {100 * right / found.credited:.1f} % of {found.credited:,} lines name the right speaker."
            )
        fresh = self.updates.cases - len(self.updates.stale)
        lines.append(
            f"Update: in a built-in test of {self.updates.cases} corrections, the newest value stands in {fresh}."
        )
        used, size = found.usage, max(1, found.tokens)
        lines.append(
            f"Cost: {used.total_tokens / size:.2f} tokens of the Observer for each token that was read, "
            f"{used.total_tokens / max(1, found.messages):.0f} a message, "
            f"{100 * used.cached_tokens / max(1, used.input_tokens):.0f} % of its input cached; "
            f"{found.calls:,} calls, {found.seconds:.1f} s."
        )
        return lines


async def evaluate_retention(
    path: Path,
    *,
    observer: str | Model = EXTRACTIVE,
    conversations: int | None = None,
    batch_tokens: int = 6_000,
    window_tokens: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Measure an Observer on a file of conversations, and on twenty small ones in which a value is corrected.

    Args:
        path: A file of a format that ``diarist observe`` reads, or BEAM: its folder of chats, a chat's folder, or the
            published rows. LoCoMo, BEAM and runs of tau-bench have questions; other files only show which anchors are
            kept.
        observer: Its model; ``"extractive"`` needs none.
        conversations: Read only so many from the start of the file. Default: all.
        batch_tokens, window_tokens, progress: As for ``measure``.

    Raises:
        InputError: The file is not a conversation in a known format, or has no messages.
        ConfigError: The model cannot be used.
        ModelError, RoleError: The model failed at every batch, or no further batch would have notes.
    """
    found = read_evidence(path)[:conversations]
    if not found:
        raise InputError(f"{path}: no conversation to measure")
    config = ObservationalMemoryConfig(
        observation=ObservationConfig(model=observer), reflection=ReflectionConfig(model=EXTRACTIVE)
    )
    models = RoleModels(config, default_counter())
    try:
        role, _ = models.roles(None)
        retention = await measure(
            found, role, batch_tokens=batch_tokens, window_tokens=window_tokens, progress=progress
        )
        if retention.failed and not retention.calls:
            raise RoleError(f"no batch has notes; the first error: {retention.failed[0]}")
        corrected = await measure_updates(role, progress=progress)
    finally:
        await models.close()
    name = observer if isinstance(observer, str) else f"{observer.provider}/{observer.name}"
    return Report(observer=name, retention=retention, updates=corrected)


def _table(title: str, heads: list[str], rows: list[list[str]]) -> str:
    first = max(len(title), *(len(row[0]) for row in rows))
    widths = [max(len(head), *(len(row[n + 1]) for row in rows)) for n, head in enumerate(heads)]
    lines = ["  ".join([title.ljust(first), *(h.rjust(w) for h, w in zip(heads, widths, strict=True))])]
    for name, *cells in rows:
        lines.append("  ".join([name.ljust(first), *(c.rjust(w) for c, w in zip(cells, widths, strict=True))]))
    return "\n".join(lines)
