"""Two texts made from the same one are merged line by line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarist.memory.working.merging import merge_texts

BASE = "# User\n- Name:\n- Likes:"
TEXT = st.lists(st.sampled_from(["# User", "- Name:", "- Name: Ada", "- Likes: tea", "- Pet: cat"]), max_size=6).map(
    "\n".join
)


@pytest.mark.parametrize(
    ("theirs", "mine", "merged"),
    [
        ("# User\n- Name: Ada\n- Likes:", "# User\n- Name:\n- Likes: tea", "# User\n- Name: Ada\n- Likes: tea"),
        (f"{BASE}\n- Pet: cat", f"{BASE}\n- Plans: Rome", f"{BASE}\n- Pet: cat\n- Plans: Rome"),
        (f"{BASE}\n- Pet: cat", f"{BASE}\n- Pet: cat", f"{BASE}\n- Pet: cat"),
        ("# User\n- Name: Ada\n- Likes:", "# User\n- Name: Bob\n- Likes:", "# User\n- Name: Bob\n- Likes:"),
        ("# User\n- Likes:", "# User\n- Name: Ada\n- Likes:", "# User\n- Name: Ada\n- Likes:"),
        ("# User\n- Name: Ada\n- Likes:", "# User\n- Likes:", "# User\n- Name: Ada\n- Likes:"),
        ("# User\n- Likes:", BASE, "# User\n- Likes:"),
        (BASE, "# User\n- Likes:", "# User\n- Likes:"),
    ],
    ids=["both", "added", "the same", "one line", "removed there", "removed here", "gone there", "gone here"],
)
def test_changes_of_both_stay(theirs: str, mine: str, merged: str) -> None:
    assert merge_texts(BASE, theirs, mine) == merged


@given(TEXT, TEXT)
def test_where_only_one_has_changed_it_its_text_holds(base: str, changed: str) -> None:
    assert merge_texts(base, base, changed) == changed
    assert merge_texts(base, changed, base) == changed


@given(TEXT, TEXT, TEXT)
def test_no_line_is_made_up(base: str, theirs: str, mine: str) -> None:
    merged = merge_texts(base, theirs, mine).splitlines()
    assert set(merged) <= {*theirs.splitlines(), *mine.splitlines()}
