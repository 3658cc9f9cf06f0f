"""Input text in one Unicode form."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from diarist.messages import TextPart
from diarist.processors.base import ProcessInputArgs, Processor
from diarist.processors.builtin.options import one_of

if TYPE_CHECKING:
    import regex

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]

# Controls but tab and line feed; signs that turn the direction of text, invisible tags and byte order marks,
# all of which can hide words from the reader.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]")
_BLANKS = re.compile(r"[^\S\n]+")
_AROUND_BREAKS = re.compile(r" ?\n ?")
_EMPTY_LINES = re.compile(r"\n{3,}")


class UnicodeNormalizer(Processor[Any]):
    """Brings the texts of a call's own messages into one Unicode form, before anything else looks at them.

    Look-alikes (full-width letters, ligatures, styled alphabets) become plain letters, so that filters and the
    model read the same words. Put it first in ``input_processors``.

    Args:
        form: ``"NFKC"`` (default), ``"NFC"``, ``"NFD"`` or ``"NFKD"``.
        keep_emoji: Default True: emoji stay as they are; NFKC would make letters of some of them.
        strip_control: Default False. True removes control characters but tab and line feed, and invisible signs
            that change the direction of text or hide words.
        collapse_whitespace: Default False. True makes one blank of several, at most one empty line of several,
            and removes them at both ends; indented code loses its indentation.

    Raises:
        ConfigError: An unknown form.

    Example::

        Agent(model="openai/gpt-5-mini", input_processors=[UnicodeNormalizer(strip_control=True)])
    """

    def __init__(
        self,
        *,
        form: Form = "NFKC",
        keep_emoji: bool = True,
        strip_control: bool = False,
        collapse_whitespace: bool = False,
    ) -> None:
        one_of("UnicodeNormalizer", "form", form, ("NFC", "NFD", "NFKC", "NFKD"))
        self._form: Form = form
        self._keep_emoji = keep_emoji
        self._strip_control = strip_control
        self._collapse_whitespace = collapse_whitespace

    def process_input(self, args: ProcessInputArgs[Any]) -> None:
        """Change the messages of this call; remembered ones were changed when they came."""
        for message in args.message_list.input:
            for part in message.parts:
                if isinstance(part, TextPart):
                    part.text = self.normalize(part.text)

    def normalize(self, text: str) -> str:
        """The text as the model gets it. Normalizing twice changes nothing more."""
        if not self._keep_emoji:
            return self._spaced(self._plain(text))
        out: list[str] = []
        place = 0
        for emoji in _emoji().finditer(text):
            out += [self._plain(text[place : emoji.start()]), emoji[0]]
            place = emoji.end()
        return self._spaced("".join([*out, self._plain(text[place:])]))

    def _plain(self, text: str) -> str:
        if self._strip_control:
            text = _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
        return unicodedata.normalize(self._form, text)

    def _spaced(self, text: str) -> str:
        if not self._collapse_whitespace:
            return text
        text = _BLANKS.sub(" ", text.replace("\r\n", "\n").replace("\r", "\n"))
        return _EMPTY_LINES.sub("\n\n", _AROUND_BREAKS.sub("\n", text)).strip()


@cache
def _emoji() -> regex.Pattern[str]:
    r"""An emoji with its modifiers and joiners, after UTS #51: flags, keycaps, and pictures in sequence."""
    import regex

    one = r"(?:\p{Emoji_Presentation}|\p{Emoji}\uFE0F)\p{Emoji_Modifier}?\u20E3?[\U000E0020-\U000E007F]*"
    return regex.compile(rf"(?:\p{{Regional_Indicator}}{{2}}|{one}(?:\u200D(?:{one}|\p{{Emoji}}))*)")
