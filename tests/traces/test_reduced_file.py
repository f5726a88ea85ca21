"""Ranks kept as files: they come back as they were, and what is damaged or cannot be is refused in one line."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from benchmarks.fuzz.reduced import make_reduced_case
from distprof.errors import DataError
from distprof.facts.run import ROW_FIELDS
from distprof.traces.kineto.read_kineto import read_kineto
from distprof.traces.reduce.phase_names import USUAL_NAMES
from distprof.traces.reduce.traced_rank import TracedRank, trace_rank
from distprof.traces.reduced_file import MAX_BYTES, encode_rank, frame_content, read_reduced, write_reduced
from tests.traces.traced_ranks import unpack

DATA = Path(__file__).parent.parent / "data"
FILES = (
    "h100_bert_small.json.gz",
    "mi250_toy.json.gz",
    "a100_128ranks_rank0.json.gz",
    "v100_dlrm_8ranks/rank3.json.gz",
)


def reduce(name: str = FILES[0]) -> TracedRank:
    return trace_rank(read_kineto(DATA / name), USUAL_NAMES)


def open_up(rank: TracedRank) -> Any:
    return msgspec.msgpack.decode(encode_rank(rank), strict=False)


def write(path: Path, tree: Any) -> Path:
    path.write_bytes(frame_content(msgspec.msgpack.encode(tree)))
    return path


@pytest.mark.parametrize("name", FILES)
def test_a_rank_comes_back_as_it_was(tmp_path: Path, name: str) -> None:
    rank = reduce(name)
    write_reduced(tmp_path / "a.distprof", rank)
    back = read_reduced(tmp_path / "a.distprof")
    np.testing.assert_equal(unpack(back), unpack(rank))
    assert back.rows.dtype == rank.rows.dtype
    assert back.rows.flags.writeable


def test_a_byte_that_changed_anywhere_is_noticed(tmp_path: Path) -> None:
    path, draws = tmp_path / "a.distprof", random.Random(3)
    write_reduced(path, reduce())
    sound = path.read_bytes()
    places = [*range(40), *(draws.randrange(len(sound)) for _ in range(60))]
    for content in (*(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :] for at in places), sound[:-1], b""):
        path.write_bytes(content)
        try:
            read_reduced(path)
        except DataError as error:
            assert str(error).startswith(f"{path}: ") and "\n" not in str(error)
        else:
            assert content[19] != sound[19]  # a later minor version: 1.1


def test_a_later_format_is_refused_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "a.distprof"
    write_reduced(path, reduce())
    path.write_bytes(path.read_bytes().replace(b"/1.0 ", b"/2.0 ", 1))
    with pytest.raises(DataError, match="format 2, but this distprof reads 1: reduce the trace again"):
        read_reduced(path)


def test_columns_are_found_by_their_names(tmp_path: Path) -> None:
    rank = reduce(FILES[2])
    tree = open_up(rank)
    fields, rows = [*reversed(ROW_FIELDS[:-1]), "later"], np.ones((len(rank.rows), len(ROW_FIELDS)))
    rows[:, : len(ROW_FIELDS) - 1] = rank.rows[:, -2::-1]
    tree["fields"], tree["rank"]["rows"] = fields, [list(rows.shape), rows.tobytes()]
    back = read_reduced(write(tmp_path / "a.distprof", tree))
    assert np.array_equal(back.rows[:, :-1], rank.rows[:, :-1], equal_nan=True) and np.isnan(back.rows[:, -1]).all()


def test_fault_19_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "a.distprof"
    path.write_bytes(frame_content(bytes(32 << 20)))
    with pytest.raises(DataError, match="damaged or truncated"):
        read_reduced(path)
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(DataError, match="more than the limit"):
        read_reduced(path)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("claim", "head", "rank"), 1 << 40), (("claim", "head", "rank"), "0"), (("claim", "head", "path"), "x" * 9**6),
        (("activity", "num_steps"), -1), (("activity", "device", "span_ns"), 7), (("activity", "lanes"), {0: None}),
        (("rows",), [[1, 2], bytes(8)]), (("rows",), [[1 << 39, 1], b""]), (("rows",), [[-1, 1], bytes(8)]),
        (("segments",), {10**9: {"begin_ns": 0, "codes": [0], "durations_ns": [1]}}), (("notes",), [1]),
        (("origin_ns",), 2**63), (("collectives",), [{}]),
    ],
)  # fmt: skip
def test_fault_36_a_rank_that_no_trace_gives_is_refused(tmp_path: Path, place: tuple[str, ...], value: object) -> None:
    tree = open_up(reduce())
    here = tree["rank"]
    for key in place[:-1]:
        here = here[key]
    assert place[-1] in here
    here[place[-1]] = value
    with pytest.raises(DataError, match=r"not what a reduced trace has \(.*\): reduce it again") as refused:
        read_reduced(write(tmp_path / "a.distprof", tree))
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 600


def test_cases_of_the_fuzzer_are_read_or_refused(tmp_path: Path) -> None:
    refused = 0
    for number in range(150):
        for name in make_reduced_case(tmp_path, random.Random(number))[0]:
            try:
                read_reduced(tmp_path / name)
            except DataError:
                refused += 1
    assert 50 < refused < 200
