"""Normalize the Unicode form of input texts."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from diarist.checks import check_by_type
from diarist.messages import TextPart
from diarist.processors.base import ProcessInputArgs, Processor

if TYPE_CHECKING:
    import regex

# Control characters except tab and line feed, and characters that hide words: text direction, invisible tags, byte
# order marks.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]")
_FRACTION = re.compile("(?<=\\d)(?=[¼-¾⅐-⅟↉])")
"""Between a number and a fraction: NFKC makes 3½ to 31⁄2."""

_BLANKS = re.compile(r"[^\S\n]+")
_AROUND_BREAKS = re.compile(r" ?\n ?")
_EMPTY_LINES = re.compile(r"\n{3,}")


@dataclass(kw_only=True, eq=False, repr=False)
class UnicodeNormalizer(Processor[Any]):
    """Normalizes the texts of a call's own messages. Put it first in ``input_processors``.

    Look-alikes (full-width letters, ligatures, styled alphabets) become plain letters, so that filters and the
    model read the same words.

    Args:
        form: ``"NFKC"`` (default), ``"NFC"``, ``"NFD"`` or ``"NFKD"``.
        keep_emoji: Leave emoji unchanged. (NFKC turns some of them into letters.) Default True.
        strip_control: Remove control characters except tab and line feed, and invisible characters that change the
            direction of text or hide words. Default False.
        collapse_whitespace: Reduce white space to one blank or one empty line, and remove it at both ends. Code loses
            its indentation. Default False.

    Example::

        Agent(model="openai/gpt-5-mini", input_processors=[UnicodeNormalizer(strip_control=True)])
    """

    form: Literal["NFC", "NFD", "NFKC", "NFKD"] = "NFKC"
    keep_emoji: bool = True
    strip_control: bool = False
    collapse_whitespace: bool = False

    def __post_init__(self) -> None:
        check_by_type(self)

    def process_input(self, args: ProcessInputArgs[Any]) -> None:
        """Normalize the messages of this call; messages from memory were normalized when they were new."""
        for message in args.message_list.input:
            for part in message.parts:
                if isinstance(part, TextPart):
                    part.text = self.normalize(part.text)

    def normalize(self, text: str) -> str:
        """Return the normalized text. Normalizing it again changes nothing."""
        if not self.keep_emoji:
            return self._spaced(self._plain(text))
        out: list[str] = []
        place = 0
        for emoji in _emoji().finditer(text):
            out += [self._plain(text[place : emoji.start()]), emoji[0]]
            place = emoji.end()
        return self._spaced("".join([*out, self._plain(text[place:])]))

    def _plain(self, text: str) -> str:
        if self.strip_control:
            text = _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
        if self.form in ("NFKC", "NFKD"):
            text = _FRACTION.sub(" ", text)
        return unicodedata.normalize(self.form, text)

    def _spaced(self, text: str) -> str:
        if not self.collapse_whitespace:
            return text
        text = _BLANKS.sub(" ", text.replace("\r\n", "\n").replace("\r", "\n"))
        return _EMPTY_LINES.sub("\n\n", _AROUND_BREAKS.sub("\n", text)).strip()


@cache
def _emoji() -> regex.Pattern[str]:
    r"""Return a pattern for emoji with modifiers and joiners (UTS #51): flags, keycaps and sequences."""
    import regex

    one = r"(?:\p{Emoji_Presentation}|\p{Emoji}\uFE0F)\p{Emoji_Modifier}?\u20E3?[\U000E0020-\U000E007F]*"
    return regex.compile(rf"(?:\p{{Regional_Indicator}}{{2}}|{one}(?:\u200D(?:{one}|\p{{Emoji}}))*)")
