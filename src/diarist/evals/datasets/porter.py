"""Porter's stemmer (Porter 1980, "An algorithm for suffix stripping"), with the changes that NLTK makes by default.

LoCoMo's F1 compares stems that NLTK's ``PorterStemmer`` made, so a stem must be the same here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise

_IRREGULAR = {
    "skies": "sky",
    "dying": "die",
    "lying": "lie",
    "tying": "tie",
    "innings": "inning",
    "inning": "inning",
    "outings": "outing",
    "outing": "outing",
    "cannings": "canning",
    "canning": "canning",
    **{word: word for word in ("sky", "news", "howe", "proceed", "exceed", "succeed")},
}
_STEP_2 = (
    ("ational", "ate"),
    ("tional", "tion"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("izer", "ize"),
    ("bli", "ble"),
    ("alli", "al"),
    ("entli", "ent"),
    ("eli", "e"),
    ("ousli", "ous"),
    ("ization", "ize"),
    ("ation", "ate"),
    ("ator", "ate"),
    ("alism", "al"),
    ("iveness", "ive"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("aliti", "al"),
    ("iviti", "ive"),
    ("biliti", "ble"),
    ("fulli", "ful"),
)
_STEP_3 = (
    ("icate", "ic"),
    ("ative", ""),
    ("alize", "al"),
    ("iciti", "ic"),
    ("ical", "ic"),
    ("ful", ""),
    ("ness", ""),
)
_STEP_4 = (
    *("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism"),
    *("ate", "iti", "ous", "ive", "ize"),
)


@lru_cache(20_000)
def stem(word: str) -> str:
    """Return the stem of an English word, in lower case."""
    word = word.lower()
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) <= 2:
        return word
    for step in (_step_1a, _step_1b, _step_1c, _step_2, _step_3, _step_4, _step_5):
        word = step(word)
    return word


def _consonant(word: str, place: int) -> bool:
    if word[place] in "aeiou":
        return False
    return word[place] != "y" or place == 0 or not _consonant(word, place - 1)


def _measure(word: str) -> int:
    """Return the number of sequences of vowels that a consonant follows."""
    kinds = [_consonant(word, place) for place in range(len(word))]
    return sum(not before and after for before, after in pairwise(kinds))


def _has_vowel(word: str) -> bool:
    return not all(_consonant(word, place) for place in range(len(word)))


def _doubled(word: str) -> bool:
    return len(word) >= 2 and word[-1] == word[-2] and _consonant(word, len(word) - 1)


def _short(word: str) -> bool:
    """Return True for an end of consonant, vowel and consonant, the last not w, x or y."""
    kinds = [_consonant(word, place) for place in range(len(word))]
    if len(word) == 2:
        return kinds == [False, True]
    return kinds[-3:] == [True, False, True] and word[-1] not in "wxy"


def _replaced(word: str, rules: Sequence[tuple[str, str]], allowed: Callable[[str], bool]) -> str:
    """Apply the first rule whose suffix the word has, if the rest is allowed."""
    for suffix, new in rules:
        if word.endswith(suffix):
            rest = word[: len(word) - len(suffix)]
            return rest + new if allowed(rest) else word
    return word


def _step_1a(word: str) -> str:
    if word.endswith("ies") and len(word) == 4:
        return word[:-1]
    return _replaced(word, (("sses", "ss"), ("ies", "i"), ("ss", "ss"), ("s", "")), lambda rest: True)


def _step_1b(word: str) -> str:
    if word.endswith("ied"):
        return word[:-1] if len(word) == 4 else word[:-2]
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    rest = next((word[: -len(suffix)] for suffix in ("ed", "ing") if word.endswith(suffix)), "")
    if not (rest and _has_vowel(rest)):
        return word
    if rest.endswith(("at", "bl", "iz")):
        return rest + "e"
    if _doubled(rest):
        return rest if rest[-1] in "lsz" else rest[:-1]
    return rest + "e" if _measure(rest) == 1 and _short(rest) else rest


def _step_1c(word: str) -> str:
    long_enough = word.endswith("y") and len(word) > 2 and _consonant(word, len(word) - 2)
    return word[:-1] + "i" if long_enough else word


def _step_2(word: str) -> str:
    if word.endswith("alli") and _measure(word[:-4]) > 0:
        return _step_2(word[:-2])
    if word.endswith("logi") and not any(word.endswith(suffix) for suffix, _ in _STEP_2):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    return _replaced(word, _STEP_2, lambda rest: _measure(rest) > 0)


def _step_3(word: str) -> str:
    return _replaced(word, _STEP_3, lambda rest: _measure(rest) > 0)


def _step_4(word: str) -> str:
    for suffix in _STEP_4:
        if word.endswith(suffix):
            rest = word[: len(word) - len(suffix)]
            allowed = _measure(rest) > 1 and (suffix != "ion" or rest[-1:] in ("s", "t"))
            return rest if allowed else word
    return word


def _step_5(word: str) -> str:
    if word.endswith("e"):
        rest = word[:-1]
        if _measure(rest) > 1 or (_measure(rest) == 1 and not _short(rest)):
            word = rest
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word
