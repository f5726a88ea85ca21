"""Spans of a rank's GPU on disk: what is written is read back, and what contradicts itself is not read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from distprof.facts.gpu import GpuCaps, GpuSpan, join_gpus
from distprof.storage.gpu_records import GpuReader, encode_gpu
from distprof.storage.rank_stream import StreamWriter, read_stream
from distprof.storage.record_lines import encode_line
from tests.storage.test_rank_stream import INFO, make_row

CAPS = GpuCaps(sm_clock_mhz=1980, power_mw=700_000, pcie_generation=5, pcie_lanes=16, counts_energy=True)
SPAN = GpuSpan(10**15, 10**9, 400_000, 1410, 62, 0x4, 5, 16)
NUMBERS = st.none() | st.integers(0, 2**40)


@given(st.lists(st.tuples(st.integers(1, 10**10), *[NUMBERS] * 6), min_size=1, max_size=20), st.booleans())
def test_what_is_written_is_read_back(drawn: list[tuple[int, ...]], counts: bool) -> None:
    spans, at_ns = [], 10**15
    for length_ns, *numbers in drawn:
        spans.append(GpuSpan(at_ns, length_ns, *numbers))
        at_ns += length_ns
    reader, caps = GpuReader(), structs.replace(CAPS, counts_energy=counts, power_mw=None)
    for part in (spans[:5], spans[5:]):
        assert reader.read(json.loads(json.dumps(encode_gpu(caps, part))))
    (read,) = reader.finish()
    assert read.caps == caps
    expected = [[np.nan if number is None else number for number in span] for span in spans]
    np.testing.assert_array_equal(read.spans, np.array(expected, dtype=np.float64))


BREAKS: dict[str, Any] = {
    "no list": {"spans": 7}, "a number": {"spans": [7]}, "too short": {"spans": [[1, 2, 3]]},
    "below 0": {"spans": [[*SPAN[:2], -1, *SPAN[3:]]]}, "text": {"spans": [[*SPAN[:3], "fast", *SPAN[4:]]]},
    "no length": {"spans": [[SPAN[0], 0, *SPAN[2:]]]}, "a fraction": {"spans": [[*SPAN[:3], 1.5, *SPAN[4:]]]},
    "before the last": {"spans": [[*SPAN], [*SPAN]]}, "no caps": {"caps": None}, "odd caps": {"caps": [1, 2, 3, 4, 5]},
    "a truth value": {"spans": [[*SPAN[:3], True, *SPAN[4:]]]}, "too large": {"spans": [[*SPAN[:2], 2**60, *SPAN[3:]]]},
}  # fmt: skip


@pytest.mark.parametrize("change", BREAKS.values(), ids=BREAKS)
def test_what_is_impossible_is_not_read(change: dict[str, Any]) -> None:
    reader = GpuReader()
    assert not reader.read({**encode_gpu(CAPS, [SPAN]), **change}) and reader.finish() == ()
    assert reader.read(encode_gpu(CAPS, [SPAN]))


def test_they_are_in_the_stream_across_files_and_damage_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.jsonl"
    writer = StreamWriter(path, run_id="r", world_size=1, info=INFO, keep_steps=2)
    for step in range(4):  # the third goes into a new file
        writer.write_gpu(CAPS, [SPAN._replace(begin_ns=10**15 + step * 10**9)])
        writer.write_steps([make_row(step)], [None])
    writer.close()
    with path.open("ab") as file:
        file.write(encode_line({**encode_gpu(CAPS, [SPAN])}))  # of an earlier time
        file.write(encode_line({"type": "gpu", "spans": 3}))
    stream = read_stream(path)
    joined = join_gpus(stream.gpus)
    assert joined is not None and joined.column("begin_ns").tolist() == [10**15 + step * 10**9 for step in range(4)]
    assert "2 damaged records" in stream.warnings[0] and join_gpus(()) is None


def test_a_tail_forgets_what_its_steps_no_longer_need() -> None:
    reader = GpuReader()
    assert reader.read(encode_gpu(CAPS, [SPAN._replace(begin_ns=at * 10**9) for at in range(9)]))
    reader.forget_before(np.nan)
    assert len(reader.finish()[0].spans) == 9
    reader.forget_before(4.5e9)
    assert reader.finish()[0].column("begin_ns").tolist() == [at * 1e9 for at in range(4, 9)]
