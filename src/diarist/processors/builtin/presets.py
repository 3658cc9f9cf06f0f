"""The patterns that ``RegexFilter`` brings along.

Formats as their owners document them: card ranges by ISO/IEC 7812, IBAN by ISO 13616, social security numbers by
the SSA's rules for numbers that are never issued, key prefixes by the providers' own pages on secret scanning.
Numbers are not verified by checksum: what looks like one is taken for one.
"""

from __future__ import annotations

_BYTE = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"

PRESETS: dict[str, dict[str, str]] = {
    "pii": {
        "email": rf"[\w.!#$%&'*+/=?^`{{|}}~-]{{1,64}}@{_LABEL}(?:\.{_LABEL}){{1,8}}",
        "credit_card": (
            r"(?<![\w-])(?:(?:4\d{3}|5[1-5]\d{2}|2[2-7]\d{2}|6(?:011|4[4-9]\d|5\d{2}))(?:[ -]?\d{4}){3}"
            r"|3[47]\d{2}[ -]?\d{6}[ -]?\d{5})(?![\w-])"
        ),
        "ssn": r"(?<![\w-])(?!000|666|9\d\d)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])",
        "iban": r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b",
        "phone": (
            r"(?<![\w+])(?:\+\d{1,3}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d{2,4}(?:[ .-]?\d{2,4}){1,4}"
            r"|(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4})(?!\w)"
        ),
        "ip_address": rf"(?<![\w.])(?:{_BYTE}\.){{3}}{_BYTE}(?!\w|\.\d)",
    },
    "secrets": {
        "private_key": (
            r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----[A-Za-z0-9+/=:,\s]*"
            r"(?:-----END [A-Z ]{0,20}PRIVATE KEY-----)?"
        ),
        "jwt": r"\beyJ[\w-]{5,}\.eyJ[\w-]{5,}\.[\w-]*",
        "api_key": (
            r"\b(?:sk-[A-Za-z0-9_-]{16,}|[rs]k_(?:live|test)_[A-Za-z0-9]{16,}|AIza[\w-]{35}"
            r"|gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{22,}|glpat-[\w-]{20,}|xox[abeoprs]-[A-Za-z0-9-]{10,}"
            r"|(?:AKIA|ASIA)[0-9A-Z]{16})"
        ),
        "bearer_token": r"\b[Bb]earer +[\w.~+/-]{16,}=*",
        "password": r"\b(?i:password|passwd|api[_-]?key|secret[_-]?key)\b[\"']? ?[:=] ?[\"']?[^\s\"']{6,}[\"']?",
    },
    "urls": {
        "url": r"\b(?:https?|ftp)://[^\s<>\"'`]+|\bwww\.[^\s<>\"'`]+",
    },
}
