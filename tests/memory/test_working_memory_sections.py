"""Of two texts made from the same one, the later replaces the sections that it has changed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarist.memory.working.store import apply, replace_sections
from diarist.storage.records import WorkingMemoryUpdate

USER, WORK = "# User\n- Name: Ada\nand more", "# Work\n- Goals: Rome"
BASE = f"{USER}\n{WORK}"
TEXT = st.lists(st.sampled_from(["first", "# User", "# Work", "- Name: Ada", "- Goals: Rome"]), max_size=6).map(
    "\n".join
)


@pytest.mark.parametrize(
    ("theirs", "mine", "merged"),
    [
        (
            f"# User\n- Name: Bea\n{WORK}",
            f"{USER}\n# Work\n- Goals: Oslo",
            "# User\n- Name: Bea\n# Work\n- Goals: Oslo",
        ),
        (f"# User\n- Name: Bea\n{WORK}", f"# User\n- Name: Cleo\n{WORK}", f"# User\n- Name: Cleo\n{WORK}"),
        (f"{BASE}\n# Pets\n- cat", f"{BASE}\n# Plans\n- sleep", f"{BASE}\n# Pets\n- cat\n# Plans\n- sleep"),
        (f"{BASE}\n# Pets\n- cat", USER, f"{USER}\n# Pets\n- cat"),
        (USER, f"# User\n- Name: Bea\n{WORK}", "# User\n- Name: Bea"),
        (f"{USER}\n- Likes: tea\n{WORK}", f"# User\n- Name: Bea\n{WORK}", f"# User\n- Name: Bea\n- Likes: tea\n{WORK}"),
        (WORK, f"{USER}\n- Likes: tea\n{WORK}", f"{WORK}\n# User\n- Likes: tea"),
    ],
    ids=["two", "the same", "added", "removed here", "removed there", "another label", "the heading removed there"],
)
def test_the_last_writer_of_a_section_wins(theirs: str, mine: str, merged: str) -> None:
    assert replace_sections(theirs, BASE, mine) == merged


@given(TEXT, TEXT)
def test_a_text_that_no_other_has_changed_is_replaced(base: str, changed: str) -> None:
    update = WorkingMemoryUpdate(run_id="r", text=changed, base=base)
    assert apply(base, [update]) == changed


@given(TEXT, TEXT, TEXT)
def test_no_line_is_made_up(base: str, theirs: str, mine: str) -> None:
    merged = replace_sections(theirs, base, mine).splitlines()
    assert set(merged) <= {*theirs.splitlines(), *mine.splitlines()}
