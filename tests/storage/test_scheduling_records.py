"""Readings of how a thread gets a core: written, read back, bounded, and left out where they cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distprof.facts.scheduling import SCHEDULING, SCHEDULING_FIELDS
from distprof.storage import stream_part
from distprof.storage.rank_stream import StreamWriter, read_stream
from distprof.storage.record_lines import encode_line
from tests.storage.test_rank_stream import INFO, make_row

READING: dict[str, float] = {"at_ns": 50, "thread": 7, "run_ns": 9, "wait_ns": 4}
"""What every one has."""


def write(path: Path, *readings: dict[str, float], keep: int | None = None) -> None:
    writer = StreamWriter(path, run_id="r", world_size=2, info=INFO, keep_steps=keep)
    for step, reading in enumerate(readings):
        writer.write_steps([make_row(step)], [None])
        writer.write_scheduling(reading)
    writer.close()


def test_what_is_written_comes_back_and_what_is_not_read_is_nan(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.jsonl"
    write(path, READING, {**READING, "at_ns": 60, "cores": 1.5, "steal_ns": 30_000_000})
    stream = read_stream(path)
    assert stream.scheduling.shape == (2, len(SCHEDULING_FIELDS)) and stream.warnings == ()
    assert stream.scheduling[:, : len(READING)].tolist() == [[50, 7, 9, 4], [60, 7, 9, 4]]
    assert stream.scheduling[1, SCHEDULING["cores"]] == 1.5 and stream.scheduling[1, SCHEDULING["steal_ns"]] == 3e7
    assert np.isnan(stream.scheduling[0, SCHEDULING["cores"]]) and np.isfinite(stream.scheduling[1]).sum() == 6


def test_both_files_of_a_long_job_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.jsonl"
    write(path, *({**READING, "at_ns": 100 + at} for at in range(10)), keep=4)
    assert read_stream(path).scheduling[:, 0].tolist() == [104, 105, 106, 107, 108, 109]


def test_of_very_many_readings_fewer_and_fewer_old_ones_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each eighth reading every second one goes: 0 to 7, then 0, 2, 4, 6 and 8 to 11, and so on."""
    monkeypatch.setattr(stream_part, "MAX_READINGS", 4)
    path = tmp_path / "rank-00000.jsonl"
    write(path, *({**READING, "at_ns": at} for at in range(17)))
    assert read_stream(path).scheduling[:, 0].tolist() == [0, 8, 12, 14, 16]


@pytest.mark.parametrize(
    "changes",
    [{"wait_ns": None}, {"wait_ns": -1}, {"wait_ns": 2.5}, {"wait_ns": "4"}, {"at_ns": 50}, {"at_ns": 10**400},
     {"cores": -1}, {"cores": 1e300}, {"threads": "8"}, {"threads": True}],
)  # fmt: skip
def test_fault_36_a_reading_that_cannot_be_is_left_out_and_counted(changes: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.jsonl"
    write(path, READING)
    with path.open("ab") as file:
        file.write(encode_line({"type": "scheduling", **READING, "at_ns": 60, **changes}))
    stream = read_stream(path)
    assert len(stream.scheduling) == 1 and len(stream.rows) == 1
    assert any("1 damaged records left out" in warning for warning in stream.warnings)


def test_a_field_of_a_newer_version_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.jsonl"
    write(path, {**READING, "mood": 3})
    assert len(read_stream(path).scheduling) == 1
