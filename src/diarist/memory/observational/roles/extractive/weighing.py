"""What kind of thing a sentence says, and how much it is worth keeping.

Cues are English words; numbers, names and question marks work in most languages. A sentence without
any cue is worth little but not nothing, so in any language the first sentences remain.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from diarist.memory.observational.roles.extractive.dates import has_date


class Kind(Enum):
    """The value is the verb in the note."""

    STATED = "stated"
    CHANGED = "changed"
    SAID = "said"
    ASKED = "asked"
    REQUESTED = "requested"
    DONE = "reported done"
    PROMISED = "promised"
    ANSWERED = "answered"


class Speaker(Enum):
    """Who says a sentence: what they ask for means something else from each."""

    USER = "user"
    ASSISTANT = "assistant"
    NAMED = "named"
    """One of several people who talk to each other, and to no assistant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """A sentence with its kind and worth (0 and less: filler)."""

    text: str
    kind: Kind
    worth: float

    @property
    def mark(self) -> str:
        match self.kind:
            case Kind.DONE:
                return "✅"
            case Kind.STATED | Kind.CHANGED:
                return "🔴"
            case Kind.REQUESTED:
                return "🔴" if self.worth >= 4 else "🟡"
            case Kind.ASKED | Kind.PROMISED:
                return "🟡"
            case Kind.SAID | Kind.ANSWERED:
                return "🟡" if self.worth >= 2.5 else "🟢"


def _words(*alternatives: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(alternatives)})\b", re.IGNORECASE)


_OWN = re.compile(r"\b(?:I|[Mm]y|[Mm]ine|[Ww]e|[Oo]ur|[Uu]s|[Mm]e)\b|^i\b")
_ABOUT_SELF = _words(
    r"my (?:[\w’'-]+ ){0,3}(?:is|are|was|has|works?|lives?|named?)",
    r"i(?:['’]m| am) (?:an?|the|from|in|allergic|vegetarian|vegan|not|\d+|learning|working|building)",
    r"i(?:['’]ve| have| had| own| live| work| study| teach| run| lead| speak| use)",
    r"allergic|vegan|vegetarian|prefer(?:s|red|ence)?|favou?rite|hates?|loves?|dislikes?",
    r"can(?:no|['’])t|never|always|must|needs?|wants?|budget|deadline|due|limit|at most|at least|"
    r"no more than|named|called",
)
_IDENTITY = re.compile(r"\bI['’]m [A-Z]\w+|\bI am [A-Z]\w+|\b[Mm]y (?:\w+ )?name(?: is|['’]s)|\b[Cc]all me\b")
_DECISION = _words(
    r"decided?|deciding|chose|chosen|choose|go(?:ing)? with|went with|settled? (?:on|for)|agreed (?:to|on|that)|picked|"
    r"opt(?:ed)? for|let['’]s|signed up|joined|started|quit|applied|accepted"
)
_CHANGE = _words(
    r"instead|no longer|not any ?more|anymore|actually|correction|rather than|switch(?:ed|ing)?|"
    r"chang(?:ed?|ing) (?:my|our|the|it|to|from|plans?|mind)|"
    r"moved? (?:to|from|back|up|it|the)|moving (?:to|from|it|the)|"
    r"cancel(?:l?ed)?|postponed?|reschedul(?:ed?|ing)|replac(?:ed?|ing|es)|pushed (?:back|to)|"
    r"(?:i|we|he|she|they) used to|scrap(?:ped)? (?:the|that)"
)
_PLAN = _words(
    r"plans?|planned|planning|going to|gonna|scheduled?|booked?|booking|trips?|fly(?:ing)?|flights?|travel(?:l?ing)?|"
    r"meeting|appointment|conference|wedding|interview|exam|visit(?:ing)?|next|will"
)
_REASON = _words(
    r"because|since|so that|due to|caused? by|recommend(?:ed)?|suggest(?:ed)?|best|cheapest|total|costs?|"
    r"means|problem|issue|root cause|failed|fails|error|fixed|works|found|only|available|policy|requires?"
)
_FINISHED = (
    r"(?:booked|confirmed|cancell?ed|completed|finished|sent|paid|submitted|delivered|refunded|merged|"
    r"deployed|installed|registered|fixed|created|updated|added|removed|scheduled|rescheduled|reserved|saved|"
    r"purchased|ordered|solved|resolved|signed|renewed|published|released|uploaded|processed|done|transferred)"
)
_DONE = re.compile(
    r"\b(?:is|are)(?: now| already| all)? (?:confirmed|booked|done|fixed|installed|completed?|scheduled|reserved|"
    r"cancell?ed|solved|resolved)\b"
    rf"|\b(?:has|have|had|['’]ve|['’]s|was|were|been|all|now|successfully|i|we|just|already)"
    rf"(?:\s(?:been|now|all|just|already|also|successfully|finally))*\s{_FINISHED}\b"
    rf"|^(?:all )?{_FINISHED}\b|\b(?:all )?tests? pass(?:ed)?\b",
    re.IGNORECASE,
)
_NOT_DONE = _words(
    r"not|never|once|if|when|will|would|should|could|can|to be|needs?|wants?|please|before|unless|until|"
    r"fail(?:s|ed|ure)?|cannot|no|after|whether|let me|since|because|although|as"
)
_NEGATED = re.compile(r"n['’]t\b|['’]ll\b|\b(?:not|cannot|unable|unfortunately)\b", re.IGNORECASE)
_REQUEST = re.compile(
    r"^(?:(?:and|then|also|now|so|ok(?:ay)?|yes|great|thanks)[,.]? )*(?:please|kindly|can you|could you|would you|"
    r"help|find|book|show|send|make|add|fix|write|update|remove|change|create|check|use|run|search|"
    r"tell|give|explain|cancel|delete|implement|let's|let’s|look|read|review|try|go|build|test|move|rename|"
    r"commit|push|set|put|do|don't|don’t|plan|draft|compare|list|summari[sz]e|translate|convert|install|remind)\b"
    r"|\bplease\b|\bi(?: want|['’]d like| would like)(?: you)? to\b|\bi need you to\b",
    re.IGNORECASE,
)
_PROMISE = re.compile(r"\bi(?:['’]ll| will)\s(?!be (?:happy|glad)|help|assist|need)", re.IGNORECASE)
_FILLER = re.compile(
    r"^\W*[A-Za-z]+\W*$|\bthank you[.! ]*$|:$|^i (?:[\w%]+ )?agree\b.{0,30}$"
    r"|^(?:thanks?|thank you|thx|excellent|ok(?:ay)?|great|sure|hello|hi|hey|bye|goodbye|wow|cool|awesome|nice|"
    r"perfect|yeah|yep|got it|no problem|you['’]re welcome|good (?:morning|evening|night|luck)|sounds good|"
    r"alright|absolutely|definitely|of course|congrat\w*|take care|see you|"
    r"that['’]?s (?:perfect|great|fine|good|all|it|correct|right))\b.{0,30}$"
    r"|\b(?:let me know|feel free|(?:is there )?anything else|happy to help|here to help|glad to|"
    r"(?:how )?(?:can|may) i (?:help|assist)|hope (?:this|that) helps|would you like (?:me )?to|great (?:question|day)|"
    r"sorry (?:for|to hear)|apologi[sz]e|thank you for|thanks for|i understand|how are you|what['’]s up|"
    r"here (?:is|are) the|if you (?:have|need)|do you confirm|are you sure|you['’]re absolutely right|let me|"
    r"i['’]ll (?:help|assist)|good to (?:see|hear)|long time)\b",
    re.IGNORECASE,
)
_PLEASANTRY = _words(
    r"means? a lot|proud of|so (?:glad|happy|proud|excited|cool)|thankful|grateful|thrilled|agree|inspir\w+|amazing|"
    r"awesome|wonderful|incredible|important|lovely|we got this|lucky|journey|make a difference|keep it up"
)
_EVENT = _words(
    r"went|visited|bought|joined|started|finished|met|painted|ran|won|lost|attended|adopted|read|wrote|made|built|"
    r"moved|got|took|found|learned|tried|hired|launched|broke|sold|shipped|saw|gave|held|had|been"
)
_LEAD_IN = re.compile(
    r"^(?:(?:oh|hey|hi|hello|wow|yeah|yep|thanks|thank you|well|haha|hmm|ah|aw+|so|and|but|also|sure|great|"
    r"ok(?:ay)?|cool|awesome|nice|of course|absolutely|definitely|perfect|good)(?:\s[A-Z]\w+)?[,!.]+\s*)+",
    re.IGNORECASE,
)
_REPLACED = (
    re.compile(r"\binstead of (?P<old>[^,.;!?()]{2,60})", re.IGNORECASE),
    re.compile(r"\brather than (?P<old>[^,.;!?()]{2,60})", re.IGNORECASE),
    re.compile(r"\bfrom (?P<old>[^,.;!?()]{2,40}?) to \S", re.IGNORECASE),
    re.compile(r"\bno longer (?P<old>[^,.;!?()]{2,60})", re.IGNORECASE),
    re.compile(r"\bnot (?P<old>[^,.;!?()]{2,40}?),? but \S", re.IGNORECASE),
    re.compile(r",\s?not (?P<old>[^,.;!?()]{2,40})", re.IGNORECASE),
    re.compile(r"\b(?:I|we|he|she|they) used to (?P<old>[^,.;!?()]{2,60})", re.IGNORECASE),
)
_ENGLISH = _words("the|is|are|to|and|of|i|you|it|my|that|this|for|with|your|not")
_NAME = re.compile(r"(?<=[^\s.!?:\"“(] )[A-Z][a-z]{2,}")
_NUMBER = re.compile(r"\d")
_CODE = re.compile(r"\b(?=\w*\d)(?=\w*[A-Z])[A-Z0-9]{5,12}\b|\b[A-Z]{2,5}-\d{2,}\b|#\d{2,}|\b[a-z]+(?:_[a-z]+)*_\d+\b")
_QUOTATION = re.compile(r"[\"“«「][^\"”»」]{3,80}[\"”»」]|`[^`]{2,80}`")


def weigh(sentence: str, speaker: Speaker) -> Weighed:
    """Weigh one sentence by who says it."""
    text = trim(sentence)
    filler = _is_filler(sentence)
    detail = _detail(text)
    if sentence.rstrip("\"”’') ").endswith(("?", "？", "؟")):
        to_assistant = 1.5 if speaker is Speaker.USER else 0.0
        return Weighed(text=text, kind=Kind.ASKED, worth=0 if filler else to_assistant + detail / 2)
    worth = detail + min(len(text), 120) / 120 - (4.0 if filler else 0.0) + 1.0 * _is_foreign(text)
    if _is_done(text) and (speaker is Speaker.ASSISTANT or _OWN.search(text)):
        return Weighed(text=text, kind=Kind.DONE, worth=worth + 2.5)
    if speaker is not Speaker.ASSISTANT:
        return _weigh_person(text, worth, speaker)
    if _PROMISE.search(text):
        return Weighed(text=text, kind=Kind.PROMISED, worth=worth - 0.5)
    return Weighed(text=text, kind=Kind.ANSWERED, worth=worth + bool(_REASON.search(text)))


def trim(sentence: str) -> str:
    """Without greetings and interjections before the first word that says something."""
    rest = _LEAD_IN.sub("", sentence, count=1)
    return rest[:1].upper() + rest[1:] if rest else sentence


def replaced(sentence: str) -> str | None:
    """What a change replaces, when the sentence itself names it."""
    for pattern in _REPLACED:
        if match := pattern.search(sentence):
            return match["old"].strip()
    return None


def _weigh_person(text: str, worth: float, speaker: Speaker) -> Weighed:
    own = bool(_OWN.search(text))
    about_self = own and bool(_ABOUT_SELF.search(text))
    worth += 1.0 * own + 1.5 * about_self + 1.5 * bool(_DECISION.search(text))
    worth += 1.0 * bool(_PLAN.search(text)) + 0.7 * (own and bool(_EVENT.search(text)))
    worth += 3.0 * bool(_IDENTITY.search(text))
    worth -= 1.2 * bool(_PLEASANTRY.search(text))
    if speaker is Speaker.USER and _REQUEST.search(text):
        return Weighed(text=text, kind=Kind.REQUESTED, worth=worth + 1.0)
    if _CHANGE.search(text):
        return Weighed(text=text, kind=Kind.CHANGED if replaced(text) else Kind.STATED, worth=worth + 2)
    stated = worth >= 3.5 or (about_self and worth >= 3)
    return Weighed(text=text, kind=Kind.STATED if stated else Kind.SAID, worth=worth)


def _detail(text: str) -> float:
    """What cannot be guessed: numbers, days, names, codes, quotations."""
    names = min(len(_NAME.findall(text)), 2)
    return (
        1.0 * bool(_NUMBER.search(text))
        + 1.5 * has_date(text)
        + 0.7 * names
        + 1.5 * bool(_CODE.search(text))
        + 0.5 * bool(_QUOTATION.search(text))
    )


def _is_foreign(text: str) -> bool:
    """Probably not English: then a missing cue means nothing."""
    return (not text.isascii() or text.count(" ") > 2) and _ENGLISH.search(text) is None


def _is_filler(sentence: str) -> bool:
    return _FILLER.search(sentence) is not None


def _is_done(text: str) -> bool:
    found = _DONE.search(text)
    if found is None:
        return False
    before = text[: found.end()]
    return not (_NOT_DONE.search(before) or _NEGATED.search(text))
