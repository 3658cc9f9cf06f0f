from __future__ import annotations

from base64 import encodebytes, urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarist.data_urls import decode_base64, read_data_url, url_of
from diarist.messages import FilePart


@given(st.sampled_from(["image/png", "text/plain", "application/vnd.ms-excel"]), st.binary())
def test_a_url_holds_the_type_and_the_bytes(media_type: str, data: bytes) -> None:
    assert read_data_url(url_of(FilePart(media_type=media_type, data=data))) == (media_type, data)


@given(st.binary())
def test_base64_is_read_in_every_usual_form(data: bytes) -> None:
    assert decode_base64(encodebytes(data).decode()) == decode_base64(urlsafe_b64encode(data).decode()) == data
    assert decode_base64(urlsafe_b64encode(data).decode().rstrip("=")) == data


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("data:text/plain;charset=utf-8,caf%C3%A9", ("text/plain", "café".encode())),
        ("data:;base64,cG5n", ("", b"png")),
        ("data:image/png;name=a.png;base64,cG5n%0A", ("image/png", b"png")),
        ("data:image/png; BASE64,cG5n", ("image/png", b"png")),
        ("data:text/plain,caf\udce9", ("text/plain", "caf\ufffd".encode())),
        ("data:image/png;base64,?", None),
        ("data:image/png", None),
        ("https://example.org/a,b", None),
    ],
)
def test_data_urls(url: str, found: tuple[str, bytes] | None) -> None:
    assert read_data_url(url) == found
