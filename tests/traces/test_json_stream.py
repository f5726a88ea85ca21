"""A long array read in parts: the same result whatever the parts; anything else is refused in bounded memory."""

from __future__ import annotations

import gzip
import json
import tempfile
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.errors import DataError
from distprof.storage.safe_open import USUAL_LIMITS, Limits
from distprof.traces.kineto.json_stream import MAX_KEYS, ArrayParts
from distprof.traces.kineto.json_text import mend
from tests.kineto_file import write_text

KEY = "traceEvents"
NASTY = [
    "},{",
    '"',
    "\\",
    '\\"},{"',
    '], "a": [',
    '{"traceEvents": [',
    "é\u2028\x00",
    "[[[",
    "}}}",
    ", {",
    "\U0001f600",
]

words = st.lists(st.sampled_from([*NASTY, "a", " ", "kernel" * 9]), max_size=6).map("".join)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=4,
)
objects = st.dictionaries(words, values, max_size=4)


def read_all(path: Path, part_bytes: int = 1 << 10, limits: Limits = USUAL_LIMITS) -> tuple[list[Any], Any, Any]:
    """Elements, and the text before and after the array."""
    parts = ArrayParts(path, KEY, msgspec.json.Decoder(list[dict[str, Any]]).decode, limits, part_bytes)
    found: list[Any] = []
    for part in parts:
        decoded = json.loads(part.text)
        assert part.decoded is None or part.decoded == decoded
        found += decoded
    return found, json.loads(parts.head), json.loads(parts.tail)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    elements=st.lists(objects, min_size=1, max_size=12), before=objects, behind=objects,
    indent=st.sampled_from([None, 1]), part_bytes=st.sampled_from([1, 7, 64, 400]),
    plain=st.booleans(), bare=st.booleans(),
)  # fmt: skip
def test_the_elements_do_not_depend_on_how_the_text_is_cut(
    elements: list[Any], before: Any, behind: Any, indent: int | None, part_bytes: int, plain: bool, bare: bool
) -> None:
    whole = elements if bare else {**before, KEY: elements, **{f"{key}2": value for key, value in behind.items()}}
    text = json.dumps(whole, indent=indent, ensure_ascii=plain)
    with tempfile.TemporaryDirectory() as folder:
        found, head, tail = read_all(write_text(Path(folder) / "t.json.gz", text), part_bytes)
    assert found == elements
    if not bare:
        assert {key: value for key, value in (head | tail).items() if key} == {
            key: value for key, value in whole.items() if key and key != KEY
        }


@pytest.mark.parametrize(("inner", "guessed"), [({"name": "a}, ]"}, True), ({"list": [{}, {}]}, False)])
def test_a_part_ends_where_the_text_seems_to_and_its_place_is_told(
    tmp_path: Path, inner: dict[str, Any], guessed: bool
) -> None:
    text = json.dumps({KEY: [{"name": f"kernel<{number}>", "args": inner} for number in range(100)]})
    path = write_text(tmp_path / "t.json", text)
    parts = list(ArrayParts(path, KEY, msgspec.json.decode, USUAL_LIMITS, 512))
    assert 5 < len(parts) < 100
    assert (sum(part.decoded is not None for part in parts) == len(parts) - 1) == guessed
    for part in parts:
        assert text[part.offset_bytes :].startswith(part.text.decode()[1:-1])


def test_the_key_counts_at_the_top_only(tmp_path: Path) -> None:
    decoys = {"inner": {KEY: [{"wrong": 1}]}, "text": f'"{KEY}": [', "listed": [{KEY: [{}]}]}
    found, head, _ = read_all(write_text(tmp_path / "t.json", json.dumps({**decoys, KEY: [{"right": 1}]})), 16)
    assert found == [{"right": 1}] and head["inner"] == decoys["inner"]


@pytest.mark.parametrize(
    "text", ["[{}, {}]", "[{}, {}", "[{}, {}, ", "[{}, {},]", ' \n[\n{},\n{}\n]\n', "\ufeff[{}, {}]"]
)  # fmt: skip
def test_a_bare_array_may_lack_its_end(tmp_path: Path, text: str) -> None:
    assert read_all(write_text(tmp_path / "t.json", text))[0] == [{}, {}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no list"),
        ("nonsense", "has no list"),
        ("{}", "has no list"),
        ('{"traceEvents": {}}', "has no list"),
        ('{"metadata": {"traceEvents": [{}]}}', "has no list"),
        ('{"a": {' * 100_000, "has no list"),
        ('{"traceEvents": [{"a": 1}, {"b', "byte 25: ends in the middle"),
        ('{"traceEvents": [{"a": 1}', "ends in the middle"),
        ('{"traceEvents": [{"a": 1}, ', "ends in the middle"),
        ('{"traceEvents": [', "ends in the middle"),
        ('{"traceEvents": [{"a": 1}}', "no comma"),
        ('{"traceEvents": [{}]', "after the events"),
        ('{"traceEvents": [{}], "a": ', "after the events"),
        ('{"traceEvents": [{}]} rest', "after the events"),
        ("[{}] rest", "after the events"),
        ("[{}, {", "ends in the middle"),
        ('{"traceEvents": [{"a": ' + "[" * 100_000, "ends in the middle"),
    ],
)
def test_what_is_cut_or_damaged_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        read_all(write_text(tmp_path / "t.json", text))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_keys_that_lead_nowhere_are_tried_a_few_times_only(tmp_path: Path) -> None:
    decoys = json.dumps({"a": [{KEY: []}] * (MAX_KEYS + 1)})[:-1]
    with pytest.raises(DataError, match="has no list"):
        read_all(write_text(tmp_path / "t.json", f'{decoys}, "{KEY}": []}}'))


def test_every_cut_of_a_gzip_is_seen_and_members_are_joined(tmp_path: Path) -> None:
    text = json.dumps({KEY: [{"number": number} for number in range(40)]}).encode()
    joined = gzip.compress(text[:100]) + gzip.compress(text[100:]) + b"\0" * 40
    path = tmp_path / "t.json.gz"
    path.write_bytes(joined)
    assert len(read_all(path)[0]) == 40
    packed = gzip.compress(text)
    for end in range(2, len(packed)):
        path.write_bytes(packed[:end])
        with pytest.raises(DataError, match="truncated"):
            read_all(path)
    path.write_bytes(packed[:40] + bytes([packed[40] ^ 255]) + packed[41:])
    with pytest.raises(DataError):
        read_all(path)


@pytest.mark.slow
def test_a_bomb_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    pack = zlib.compressobj(9, zlib.DEFLATED, 31)
    with open(path, "wb") as file:
        file.write(pack.compress(b'{"traceEvents": [{"name": "'))
        for _ in range(400):
            file.write(pack.compress(b"a" * 500_000))
        file.write(pack.flush())
    assert path.stat().st_size < 200_000
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="-fold"):
            read_all(path, 1 << 20)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 300 << 20, "the free part, its tables of letters and no more"


@pytest.mark.parametrize(
    ("limits", "said"),
    [(Limits(max_bytes=5000), "more than 5000 bytes"), (Limits(max_part_bytes=5000), "longer than 5000 bytes")],
)
def test_limits_of_length(tmp_path: Path, limits: Limits, said: str) -> None:
    path = write_text(tmp_path / "t.json", json.dumps({KEY: [{"name": "a" * 20_000}]}))
    with pytest.raises(DataError, match=said):
        read_all(path, limits=limits)


def test_mending_makes_json_of_what_almost_is() -> None:
    almost = (
        rb'{"a": NaN, "b": [-inf, Infinity], "c": "is NaN, or", "d\q": "\ud800", '
        rb'"e": "\ud83d\ude00", "f": "\\", "g": inf}'
    )
    assert json.loads(mend(almost)) == {
        "a": None, "b": [None, None], "c": "is NaN, or", "d\\q": "\ufffd", "e": "\U0001f600", "f": "\\", "g": None,
    }  # fmt: skip
    assert json.loads(mend(b'{"a\x01": "\xff"}')) == {"a ": "\ufffd"}


@given(text=objects.map(json.dumps))
@settings(max_examples=60, deadline=None)
def test_mending_leaves_json_as_it_is(text: str) -> None:
    assert json.loads(mend(text.encode())) == json.loads(text)
