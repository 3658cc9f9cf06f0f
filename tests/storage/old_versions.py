"""Databases of earlier versions, made from those of today by taking out what each version has added."""

from __future__ import annotations

_ADDED = {
    2: ["DROP TABLE IF EXISTS diarist_search_index", "DROP TABLE diarist_search"],
    4: ["DROP TABLE diarist_working_memories"],
    5: ["ALTER TABLE diarist_threads DROP COLUMN stamp", "ALTER TABLE diarist_logs DROP COLUMN stamp"],
    6: ["DROP TABLE diarist_forgotten"],
    7: ["ALTER TABLE diarist_threads DROP COLUMN indexed_seq"],
    8: ["DROP TABLE diarist_superseded", "DROP TABLE diarist_branch_changes"],
}


def back_to(version: int) -> list[str]:
    """Return the statements that make a database of this version."""
    later = sorted((each for each in _ADDED if each > version), reverse=True)
    at = f"UPDATE diarist_schema SET version = {version} WHERE name = 'storage'"
    return [*(statement for each in later for statement in _ADDED[each]), at]
