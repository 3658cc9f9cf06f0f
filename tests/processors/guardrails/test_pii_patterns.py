"""Patterns of personal data: values that are found, and harmless text that is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarist.processors.guardrails.pii_patterns import (
    _IBAN_LENGTHS,  # pyright: ignore[reportPrivateUsage]
    DETECTION_TYPES,
    PIIPatterns,
    iban_checksum,
    luhn,
)
from diarist.processors.streaming_redaction import Redactor

ALL = PIIPatterns(DETECTION_TYPES)

FOUND = {
    "email": ["ada@example.com", "a.b+c@mail.example.co.uk", "o'neil@example.org"],
    "phone": ["+49 30 1234567", "(212) 555-0173", "212-555-0173", "+1 (212) 555-0173", "030 1234567", "0171/2345678"],
    "credit-card": ["4111 1111 1111 1111", "4111111111111111", "5555-5555-5555-4444", "3782 822463 10005"],
    "iban": ["DE89 3704 0044 0532 0130 00", "GB82WEST12345698765432", "NO93 8601 1117 947", "de89370400440532013000"],
    "ip-address": ["192.168.17.43", "2001:db8::8a2e:370:7334", "::ffff:10.1.2.3", "fe80::1"],
    "ssn": ["078-05-1120"],
    "api-key": [
        "sk-abcdefghijklmnopqrstuvwx",
        "ghp_" + "a1B2" * 9,
        "eyJ" + "a1-_" * 2000 + ".eyJzdWIiOiIx.s",
        "AKIAIOSFODNN7EXAMPLE",
    ],
    "date-of-birth": ["1815-12-10", "10 December 1815", "December 10, 1815", "10.12.1815"],
}

HARMLESS = [
    "version 1.2.3 of 2026-11-21 at 12:30:45",
    "order 4111 1111 1111 1112 shipped",
    "std::vector and a::b",
    "DE89 3704 0044 0532 0130 01 fails its checksum",
    "The answer is 123456789012345678901234567890.",
    "1 000 000 people in 2024",
    "http://example.com:8080/path@version",
    "I was born in Rome.",
    "0000 0000 0000 0000",
    "42.30535660853002 degrees north, a share of 0.4111111111111111",
]


def found(text: str) -> list[tuple[str, str]]:
    return [(span.label, text[span.start : span.end]) for span in ALL.look(text)[0]]


@pytest.mark.parametrize(("label", "value"), [(label, value) for label, values in FOUND.items() for value in values])
def test_values_are_found(label: str, value: str) -> None:
    lead = "born on " if label == "date-of-birth" else "see "
    assert (label, value) in found(f"{lead}{value}, thanks")
    assert (label, value) in found(f"{lead}{value}")


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_text_is_not_found(text: str) -> None:
    assert found(text) == []


def test_only_the_credentials_of_a_url_are_found() -> None:
    assert found("postgresql://ada:s3cret@db.example:5432/app") == [("url-credentials", "ada:s3cret")]


def test_an_iban_is_found_after_a_similar_word() -> None:
    assert ("iban", "DE89 3704 0044 0532 0130 00") in found("REF AB12 DE89 3704 0044 0532 0130 00")


def test_capitals_after_an_iban_are_not_part_of_it() -> None:
    assert ("iban", "DE89 3704 0044 0532 0130 00") in found("DE89 3704 0044 0532 0130 00 PLEASE PAY")


def test_a_card_number_is_found_among_other_digits() -> None:
    for text in ("on 12 4111 1111 1111 1111 99", "Step 1.4111 1111 1111 1111"):
        assert ("credit-card", "4111 1111 1111 1111") in found(text)


@given(st.text(st.sampled_from("0123456789"), min_size=11, max_size=18))
def test_exactly_one_check_digit_is_valid(digits: str) -> None:
    assert sum(luhn(digits + check) for check in "0123456789") == 1


@given(
    st.sampled_from(sorted(code for code, length in _IBAN_LENGTHS.items() if length)),
    st.text(st.sampled_from("0123456789ABCXYZ"), min_size=33, max_size=33),
)
def test_every_valid_iban_is_found_with_and_without_spaces(country: str, filler: str) -> None:
    body = filler[: _IBAN_LENGTHS[country] - 4]
    number = int("".join(str(int(char, 36)) for char in f"{body}{country}00"))
    iban = f"{country}{98 - number % 97:02d}{body}"
    assert iban_checksum(iban)
    spaced = " ".join(iban[index : index + 4] for index in range(0, len(iban), 4))
    for written in (iban, spaced):
        assert ("iban", written) in found(f"to {written}.")


@given(
    st.lists(
        st.sampled_from(
            [value for values in FOUND.values() for value in values]
            + [" ", ", ", "\n", "x", "call ", "12", "born on ", "http://u:p@h ", "DE", "AB12 ", "-"]
        ),
        max_size=6,
    ),
    st.data(),
)
def test_the_result_is_the_same_wherever_the_text_is_cut(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    stream = Redactor(ALL.look, lambda matched, span: f"[{span.label}]")
    rest, out = text, ""
    while rest:
        cut = data.draw(st.integers(1, len(rest)))
        out += stream.feed(rest[:cut])
        rest = rest[cut:]
    assert out + stream.flush() == stream.redact(text)
