"""``UnicodeNormalizer``: input texts in one Unicode form, with emoji unchanged."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarist import Agent, Message
from diarist.exceptions import ConfigError
from diarist.processors import UnicodeNormalizer
from diarist.testing import ScriptedModel
from tests.processors.builtin.kit import Past

EMOJI = "👩\u200d👩\u200d👧 👍🏽 🇮🇹 🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f ❤\ufe0f\u200d🔥"
"""A family, a hand with its colour, two flags and a burning heart."""


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("Ｈｅｌｌｏ ﬁne ①", {}, "Hello fine 1"),
        ("3½ km, ½, ３⅔", {}, "3 1⁄2 km, 1⁄2, 3 2⁄3"),
        ("3½", {"form": "NFC"}, "3½"),
        ("cafe\u0301", {}, "café"),
        ("caf\u00e9", {"form": "NFD"}, "cafe\u0301"),
        ("𝐁𝐨𝐥𝐝", {}, "Bold"),
        ("Ⓜ\ufe0f ㊗\ufe0f ™\ufe0f 5\ufe0f\u20e3", {}, "Ⓜ\ufe0f ㊗\ufe0f ™\ufe0f 5\ufe0f\u20e3"),
        ("Ⓜ\ufe0f", {"keep_emoji": False}, "M\ufe0f"),
        (
            "👩\u200d👩\u200d👧 👍🏽 🇮🇹 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ❤\ufe0f\u200d🔥",
            {"strip_control": True},
            "👩\u200d👩\u200d👧 👍🏽 🇮🇹 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ❤\ufe0f\u200d🔥",
        ),
        ("a\x00b\x1b[0m\tc\nd\u202ee\ufefff", {"strip_control": True}, "ab[0m\tc\ndef"),
        ("hid\U000e0041\U000e0042den", {"strip_control": True}, "hidden"),
        ("a\x00b", {}, "a\x00b"),
        ("  a \t b\u00a0c \n\n\n\n d  ", {"collapse_whitespace": True}, "a b c\n\nd"),
        ("  a  b ", {}, "  a  b "),
        ("一二 ｶﾞ", {}, "一二 ガ"),
    ],
)
async def test_the_model_gets_normalized_text(text: str, options: dict[str, Any], expected: str) -> None:
    model = ScriptedModel("ok")
    await Agent(model=model, input_processors=[UnicodeNormalizer(**options)]).generate(text)
    assert model.requests[0].prompt.messages[-1].text == expected


@given(
    text=st.text(),
    form=st.sampled_from(["NFKC", "NFC", "NFD", "NFKD"]),
    strip=st.booleans(),
    collapse=st.booleans(),
    keep=st.booleans(),
)
def test_normalizing_twice_changes_nothing(text: str, form: Any, strip: bool, collapse: bool, keep: bool) -> None:
    normalize = UnicodeNormalizer(
        form=form, keep_emoji=keep, strip_control=strip, collapse_whitespace=collapse
    ).normalize
    assert normalize(normalize(text)) == normalize(text)


FRACTIONS = "".join(map(chr, [*range(0xBC, 0xBF), *range(0x2150, 0x2160), 0x2189]))
"""A blank comes before them, so that 3½ does not become 31/2."""


@given(
    st.text(
        alphabet=st.characters(
            blacklist_categories=["So", "Sk", "Cs"], blacklist_characters="\u200d\ufe0f\u20e3" + FRACTIONS
        )
    )
)
def test_without_keep_emoji_all_text_is_normalized(text: str) -> None:
    assert UnicodeNormalizer(keep_emoji=False).normalize(text) == unicodedata.normalize("NFKC", text)


async def test_messages_from_memory_are_unchanged() -> None:
    model = ScriptedModel("ok")
    past = Past(Message.user("ﬁrst"))
    await Agent(model=model, input_processors=[past, UnicodeNormalizer()]).generate("ﬁnal")
    assert "ﬁrst" in model.requests[0].text
    assert "final" in model.requests[0].text


def test_wrong_options_are_named() -> None:
    with pytest.raises(ConfigError, match="UnicodeNormalizer: form must be one of 'NFC'"):
        UnicodeNormalizer(form="NFX")  # type: ignore[arg-type]
