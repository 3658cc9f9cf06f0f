from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import tiktoken
import tiktoken_ext.openai_public
from hypothesis import given, settings
from hypothesis import strategies as st

from diarist import tokens
from diarist.exceptions import ConfigError
from diarist.tokens import SLOTS, TOKENS, O200kCounter, count_image, default_counter
from tests.properties import examples

# What OpenAI publishes as o200k_base.tiktoken.
PUBLISHED_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"

SAMPLES = [
    "The quick brown fox jumps over the lazy dog. It's 12,345.67 USD, isn't it?",
    "Ich heiße Ada und fliege am Freitag nach Rom – für 3½ Tage.",
    "我今天下午三点要去罗马，请帮我查一下天气和酒店的情况。",
    "مرحبا، أريد أن أعرف حالة الطقس في روما يوم الجمعة.",
    "नमस्ते, मैं शुक्रवार को रोम जा रही हूँ।",
    "สวัสดีค่ะ วันศุกร์นี้ฉันจะไปโรม",
    "Привет! Я лечу в Рим в пятницу 🎉👨‍👩‍👧 e\u0301",
    "def f(x: int) -> None:\n\tif x:\r\n        return {'a': [1, 2, 3]}  # ok\n\n\n",
    '{"id":12345678,"name":"Ada","tags":["a","b"],"ok":true}',
    "<|endoftext|> is only text here, <|endofprompt|> too",
    "aGVsbG8gd29ybGQ=/+aGVsbG8=\x1c\x1d\u00a0\u2003 \u3000",
]


def bundled_ranks() -> dict[bytes, int]:
    """The tokens of the bundled file by rank."""
    raw = zlib.decompress(tokens._FILE.read_bytes())[4 * SLOTS :]
    lengths, each = raw[:TOKENS], raw[TOKENS:]
    starts = accumulate(lengths, initial=0)
    return {
        each[start : start + length]: rank for rank, (start, length) in enumerate(zip(starts, lengths, strict=False))
    }


def published_encoding() -> tiktoken.Encoding:
    """o200k_base as tiktoken itself defines it, with our ranks in place of its download."""
    with pytest.MonkeyPatch.context() as patch:

        def load(_address: str, expected_hash: str) -> dict[bytes, int]:
            assert expected_hash == PUBLISHED_SHA256
            return bundled_ranks()

        patch.setattr(tiktoken_ext.openai_public, "load_tiktoken_bpe", load)
        definition: dict[str, Any] = tiktoken_ext.openai_public.o200k_base()
    return tiktoken.Encoding(**definition)


REFERENCE = published_encoding()


def exact(text: str) -> int:
    return len(REFERENCE.encode_ordinary(text))


@pytest.fixture
def fresh() -> Iterator[None]:
    """As in a process that has not counted yet."""
    tokens._o200k.cache_clear()
    yield
    tokens._o200k.cache_clear()


def test_bundled_ranks_are_the_published_ones() -> None:
    lines = (base64.b64encode(token) + b" %d\n" % rank for token, rank in bundled_ranks().items())
    assert hashlib.sha256(b"".join(lines)).hexdigest() == PUBLISHED_SHA256


@pytest.mark.parametrize("text", SAMPLES)
def test_ordinary_text_is_counted_exactly(text: str) -> None:
    assert default_counter().count(text) == exact(text)
    assert default_counter().count(text * 500) == exact(text * 500)


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cn"]))
"""Texts of assigned characters: the patterns of the two tokenizers know different versions of Unicode."""


@settings(max_examples=examples(300), deadline=None)
@given(st.one_of(TEXT, st.lists(st.sampled_from(SAMPLES)).map(" ".join)))
def test_any_text_without_a_long_run_is_counted_exactly(text: str) -> None:
    assert default_counter().count(text) == exact(text)


@settings(max_examples=examples(100), deadline=None)
@given(TEXT, st.sampled_from([" ", "a", "字", "\n", "!", "\u0301"]), TEXT)
def test_text_with_a_run_just_below_the_cut_is_counted_exactly(before: str, letter: str, after: str) -> None:
    run = letter * (tokens._MAX_RUN - len(before) - len(after))
    text = before + run + after
    assert default_counter().count(text) == exact(text)


@settings(max_examples=examples(100), deadline=None)
@given(st.text(alphabet="ab \n!é字", max_size=200), st.text(alphabet="ab \n!é字", max_size=200))
def test_joined_by_a_word_break_two_texts_add_up(left: str, right: str) -> None:
    count = default_counter().count
    left, right = left + "end.", "\tnext" + right
    assert count(left + right) == count(left) + count(right)


def test_joining_anything_changes_the_sum_little() -> None:
    count = default_counter().count
    for left in SAMPLES:
        for right in SAMPLES:
            assert abs(count(left + right) - count(left) - count(right)) <= 3


def test_nothing_is_zero_tokens() -> None:
    assert default_counter().count("") == 0


@pytest.mark.parametrize("unit", ["word after word ", "a", "今天 ", "1, "])
@pytest.mark.slow
def test_counting_a_long_text_takes_less_memory_than_the_text(unit: str) -> None:
    text = unit * (4_000_000 // len(unit))
    default_counter().count(text[:20_000])  # loads the ranks and the patterns
    tracemalloc.start()
    try:
        default_counter().count(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < sys.getsizeof(text) / 2


def test_lone_surrogates_count_as_replacement_characters() -> None:
    assert default_counter().count("broken \ud800 text") == exact("broken \ufffd text")


@pytest.mark.parametrize(
    "unit", [" ", "\t ", "\n", "a", "A", "ab", "字", "🎉", "!", "-=", "/\n", "\u0301", "1", "\x1c!"]
)
def test_a_million_of_the_same_is_counted_at_once(unit: str) -> None:
    counted = default_counter().count(unit * 1_000_000)
    sample = unit * 8192
    assert counted == pytest.approx(exact(sample) * 1_000_000 / 8192, rel=0.02)


@pytest.mark.parametrize(
    "text",
    [
        " " * 1_000_000 + "x",
        "!" * 10 + "\u0301" * 9_000 + "a" * 1_000_000,
        pytest.param(("-" * 8_000 + "\n") * 200, marks=pytest.mark.slow),
        "word " * 3_000 + "a" * 100_000 + " word" * 3_000,
    ],
)
def test_a_long_run_inside_other_text_is_counted_at_once(text: str) -> None:
    counted = default_counter().count(text)
    assert counted > 0


@pytest.mark.parametrize("unit", ["word and word, ", "今天天气很好。", "x" * 9_000 + " "])
@pytest.mark.slow
def test_counting_a_long_text_takes_little_memory(unit: str) -> None:
    text = (unit * (5_000_000 // len(unit)))[:5_000_000]
    default_counter().count(text)
    tracemalloc.start()
    default_counter().count(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3_000_000


def test_counting_from_many_threads_agrees() -> None:
    counter = O200kCounter()
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(counter.count, [SAMPLES[0]] * 64)) == {exact(SAMPLES[0])}


@pytest.mark.usefixtures("fresh")
def test_the_encoding_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[int] = []
    read = tokens._read
    monkeypatch.setattr(tokens, "_read", lambda: loads.append(1) or read())
    list(map(O200kCounter().count, SAMPLES))
    assert len(loads) == 1


def test_import_loads_no_encoding() -> None:
    code = "import sys, diarist.tokens as t; t.default_counter();assert not {'tiktoken', 'regex'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_counting_needs_no_tiktoken() -> None:
    code = (
        "import sys, diarist.tokens as t; assert t.default_counter().count('hello world');"
        "assert not {'tiktoken', 'regex'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the size of the process from /proc")
def test_the_loaded_encoding_takes_little_memory() -> None:
    code = (
        "import hashlib, pathlib, diarist.tokens as t, diarist.exceptions\n"
        "pages = lambda: int(pathlib.Path('/proc/self/statm').read_text().split()[1])\n"
        "before = pages(); t.default_counter().count('hello world'); print((pages() - before) * 4096)"
    )
    grown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert int(grown) < 20_000_000


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("content", [None, b"not zlib", zlib.compress(b"other ranks")])
def test_damaged_data_is_a_config_error(content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.zlib"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setattr(tokens, "_FILE", path)
    with pytest.raises(ConfigError, match="install diarist again"):
        default_counter().count("hello")


def test_default_counter_is_shared_and_named() -> None:
    assert default_counter() is default_counter()
    assert default_counter().name == "o200k_base"


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [
        (1024, 1024, 765),  # the provider's own examples
        (2048, 4096, 1105),
        (512, 512, 255),
        (513, 512, 425),
        (1, 20_000, 85 + 170 * 4),
        (None, None, 765),
        (None, 300, 765),
    ],
)
def test_images_follow_the_tile_formula(width: int | None, height: int | None, expected: int) -> None:
    assert count_image(width, height) == expected
