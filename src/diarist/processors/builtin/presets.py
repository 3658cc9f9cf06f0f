"""The built-in patterns of ``RegexFilter``.

Sources: card ranges from ISO/IEC 7812, IBANs from ISO 13616, social security numbers from the SSA's rules for numbers
that are never issued, key prefixes from the providers' pages on secret scanning. Checksums are not verified.
"""

from __future__ import annotations

from diarist.processors.patterns import KnownPattern

_BYTE = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"

PRESETS: dict[str, dict[str, KnownPattern]] = {
    "pii": {
        "email": KnownPattern(
            rf"[\w.!#$%&'*+/=?^`{{|}}~-]{{1,64}}@{_LABEL}(?:\.{_LABEL}){{1,8}}",
            begins=r"[\w.!#$%&'*+/=?^`{|}~-]{1,64}@",
            inside_words=True,
        ),
        "credit_card": KnownPattern(
            r"(?<![\w-])(?:(?:4\d{3}|5[1-5]\d{2}|2[2-7]\d{2}|6(?:011|4[4-9]\d|5\d{2}))(?:[ -]?\d{4}){3}"
            r"|3[47]\d{2}[ -]?\d{6}[ -]?\d{5})(?![\w-])",
            begins=r"[2-6]\d{3}[ -]?\d{4}",
        ),
        "ssn": KnownPattern(
            r"(?<![\w-])(?!000|666|9\d\d)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])", begins=r"\d{3}-\d{2}-"
        ),
        "iban": KnownPattern(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b", begins=r"[A-Z]{2}\d{2}"),
        "phone": KnownPattern(
            r"(?<![\w+])(?:\+\d{1,3}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d{2,4}(?:[ .-]?\d{2,4}){1,4}"
            r"|(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4})(?!\w)",
            begins=r"\+\d|\(?\d{3}[ .)-] ?\d{3}",
        ),
        "ip_address": KnownPattern(rf"(?<![\w.])(?:{_BYTE}\.){{3}}{_BYTE}(?!\w|\.\d)", begins=r"\d{1,3}\.\d{1,3}\."),
    },
    "secrets": {
        "private_key": KnownPattern(
            r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----[A-Za-z0-9+/=:,\s]*"
            r"(?:-----END [A-Z ]{0,20}PRIVATE KEY-----)?",
            begins="-----BEGIN ",
            inside_words=True,
        ),
        "jwt": KnownPattern(r"\beyJ[\w-]{5,}\.eyJ[\w-]{5,}\.[\w-]*", begins="eyJ"),
        "api_key": KnownPattern(
            r"\b(?:sk-[A-Za-z0-9_-]{16,}|[rs]k_(?:live|test)_[A-Za-z0-9]{16,}|AIza[\w-]{35}"
            r"|gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{22,}|glpat-[\w-]{20,}|xox[abeoprs]-[A-Za-z0-9-]{10,}"
            r"|(?:AKIA|ASIA)[0-9A-Z]{16})",
            begins=r"sk-|[rs]k_(?:live|test)_|AIza|gh[pousr]_|github_pat_|glpat-|xox[abeoprs]-|A[KS]IA",
        ),
        "bearer_token": KnownPattern(r"\b[Bb]earer +[\w.~+/-]{16,}=*", begins="[Bb]earer "),
        "password": KnownPattern(
            r"\b(?i:password|passwd|api[_-]?key|secret[_-]?key)\b[\"']? ?[:=] ?[\"']?[^\s\"']{6,}[\"']?",
            begins=r"(?i:passw(?:or)?d|(?:api|secret)[_-]?key)[\"' ]?[ :=]",
        ),
    },
    "urls": {
        "url": KnownPattern(r"\b(?:https?|ftp)://[^\s<>\"'`]+|\bwww\.[^\s<>\"'`]+", begins=r"https?://|ftp://|www\."),
    },
}
